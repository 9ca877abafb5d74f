"""How many checkpoints a run keeps: the last ones, and the bases of carried work."""

from __future__ import annotations

from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy

LEAST_KEPT = 2


def kept_checkpoints(carry: CarryPolicy | None) -> int:
    """Return the number of checkpoints that a run keeps; `carry` is its policy for carried work, whose bases are among them."""
    return LEAST_KEPT if carry is None else LEAST_KEPT + carry.max_staleness
