"""The page what-leaves.md: each field that a device sends, why, and how its owner stops it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby

from fedpatch.shared.wire.what_leaves import NEEDED, WHAT_LEAVES, SentField
from scripts.reference.markdown import render, table


def page() -> str:
    """Return the page."""
    rows = [row for kind, sent in WHAT_LEAVES.items() for row in _rows(kind.__name__, sent)]
    return render("what-leaves.md", fields=table(("message", "field", "why it is sent", "how it is stopped"), rows))


def _rows(message: str, sent: Mapping[str, SentField]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each run of fields with one reason; the first one has the message."""
    first = f"**{message}**"
    for one, names in groupby(sent, key=lambda name: sent[name]):
        yield first, ", ".join(f"`{name}`" for name in names), one.why, _stop(one.stop)
        first = ""


def _stop(stop: str) -> str:
    """Return the cell of a way to stop a field: empty for a field that is always sent, as the template says."""
    if stop == NEEDED:
        return ""
    return re.sub(r'^\w+ = ("\w+"|\w+)', r"`\g<0>`", stop)
