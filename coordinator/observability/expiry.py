"""When the certificates expire that a run depends on, asked anew at each scrape: whoever renews one sees it at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from coordinator.identity.index import DEVICE
from coordinator.identity.revocations import Revocations
from coordinator.settings import RunSettings
from shared.tls_faults import expiry_of

Ask = Callable[[], float | None]


def of_files(settings: RunSettings) -> dict[str, Ask]:
    """`ca`: the first of ca_file; `coordinator`: our own. Only those that there are."""
    files = {"ca": settings.ca_file, "coordinator": settings.cert_file}
    return {name: partial(expiry_of, path) for name, path in files.items() if expiry_of(path) is not None}


def of_others(revocations: Revocations, broker_ends: Ask) -> dict[str, Ask]:
    """`device`: the first device whose newest certificate ends; `broker`: what it showed in the last handshake.

    Asked by the threads of the endpoint: they take one reference and change nothing.
    """
    asks: dict[str, Ask] = {}
    if revocations.index.entries:  # there is a CA, and the first device may come while the run goes on
        asks["device"] = lambda: revocations.index.first_expiry(DEVICE)
    if broker_ends() is not None:
        asks["broker"] = broker_ends
    return asks


def as_number(ask: Ask) -> float:
    """As a gauge wants it: what is not known is not a number."""
    found = ask()
    return math.nan if found is None else float(found)
