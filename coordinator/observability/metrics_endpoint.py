"""Serves the metrics of a run at http://HOST:PORT/metrics while it goes on; a run never fails for want of them.

When the certificates expire that a run depends on, asked anew at each scrape: whoever renews one sees it at once.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.observability.snapshot import View
from fedpatch.coordinator.pki.issued_certificates import DEVICE
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.mqtt.tls_errors import expiry_of

if TYPE_CHECKING:
    from fedpatch.coordinator.observability.metric_definitions import Metrics


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


NO_OTHERS: Mapping[str, Ask] = MappingProxyType({})


@contextmanager
def observed(
    settings: RunSettings, engine: Engine, directory: Path, view: View, certificates: Mapping[str, Ask] = NO_OTHERS
) -> Iterator[Observer]:
    """The observer of a run whose files are in `directory`: it counts along where the settings want metrics.

    `certificates` are others than those of the settings, by name: when they expire.
    Where they cannot be served, `view` says why, once, and nobody counts.
    """
    if settings.metrics is None:
        yield NullObserver()
        return
    address = parse_address(settings.metrics)
    try:
        from fedpatch.coordinator.observability.metric_definitions import Metrics
        from fedpatch.coordinator.observability.run_metrics import RunMetrics
    except ModuleNotFoundError as error:
        view.say(f"no metrics: {error.name} is not installed; pip install 'fedpatch[coordinator]', or --metrics none")
        yield NullObserver()
        return
    metrics = Metrics()
    meter = RunMetrics(metrics, engine, directory, strategy=settings.strategy, max_devices=settings.metrics_max_devices)
    metrics.traffic.free.set_function(partial(_of_disk, directory, "free"))
    metrics.traffic.size.set_function(partial(_of_disk, directory, "total"))
    for name, ask in {**of_files(settings), **certificates}.items():
        metrics.traffic.expiry.labels(name).set_function(partial(as_number, ask))
    try:
        stop, url = serve(metrics, address)
    except (OSError, UnicodeError) as error:  # the latter of a name that cannot be looked up
        why = getattr(error, "strerror", None) or error
        view.say(f"no metrics: cannot listen on {address}: {why}; --metrics names another HOST:PORT")
        yield NullObserver()
        return
    view.say(f"metrics: {url}")
    try:
        yield meter
    finally:
        stop()


def serve(metrics: Metrics, address: Address) -> tuple[Callable[[], None], str]:
    """Serves in threads of its own; returns what ends that, and the URL. OSError where the address cannot be had."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(address.port, address.host, metrics.registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop, f"http://{Address(address.host, server.server_port)}/metrics"


def _of_disk(directory: Path, what: str) -> float:
    """Asked at each scrape: the coordinator's thread does not wait for a disk that is slow to answer."""
    try:
        return float(getattr(shutil.disk_usage(directory), what))
    except OSError:
        return math.nan
