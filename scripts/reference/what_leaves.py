"""The page what-leaves.md: each field that a device sends, why, and how its owner stops it."""

from __future__ import annotations

from fedpatch.shared.wire.what_leaves import NEEDED, WHAT_LEAVES
from scripts.reference.markdown import render, table


def page() -> str:
    """Return the page."""
    parts = [
        f"### {kind.__name__}\n\n"
        + table(
            ("field", "why it is sent", "how it is stopped"),
            [(f"`{name}`", one.why, _stop(one.stop)) for name, one in sent.items()],
        )
        for kind, sent in WHAT_LEAVES.items()
    ]
    return render("what-leaves.md", fields="\n".join(parts))


def _stop(stop: str) -> str:
    """Return the cell of a way to stop a field: empty for a field that is always sent, as the template says."""
    if stop == NEEDED:
        return ""
    return f"`{stop}`" if "=" in stop else stop
