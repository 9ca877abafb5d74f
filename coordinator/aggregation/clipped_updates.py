"""The updates of a round after the bounds of the run on their norms; a rule may read them several times."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedpatch.coordinator.aggregation.norm_clipping import clip
from fedpatch.coordinator.aggregation.norm_limits import limits_of
from fedpatch.coordinator.aggregation.update_norms import Part, counts
from fedpatch.coordinator.aggregation.weighed_updates import WeighedUpdates
from fedpatch.shared.tensors.arrays import Tensors


class ClippedUpdates:
    """Reads updates, each clipped where it is beyond a bound.

    Args:
        updates: The updates.
        limits: The limits of the round per unit; None: nothing is clipped.
        norms: The norms of each update, if they are known.

    Attributes:
        clipped: The norm as a multiple of its limit, by device whose update was clipped and by part.
    """

    def __init__(
        self,
        updates: WeighedUpdates,
        limits: Mapping[Part, float] | None,
        norms: Mapping[str, Mapping[Part, float]],
    ) -> None:
        self.clipped: dict[str, dict[Part, float]] = {}
        self._updates = updates
        self._limits = limits
        self._norms = norms
        # Updates within their bounds, which need no second check.
        self._unchanged: set[str] = set()

    def all_within(self) -> bool:
        """Return whether all updates, which are measured already, are within their bounds."""
        assert self._limits is not None, "norms are measured for a bound"
        for device, pace in self._updates.paces.items():
            own = limits_of(self._limits, self._updates.base, pace)
            if any(value > own.get(part, math.inf) for part, value in self._norms[device].items()):
                return False
        return True

    def read(self, device: str) -> Tensors:
        """Return the tensors of a device's update, clipped where they are beyond a bound."""
        tensors = self._updates.read(device)
        if self._limits is None or device in self._unchanged:
            return tensors
        pace, base, schema = self._updates.paces[device], self._updates.base, self._updates.schema
        own = limits_of(self._limits, base, pace)
        origin, found = pace.origin(base, schema), self._norms.get(device)
        pulled = clip(tensors, origin, schema, own, found) if own else None
        if pulled is None:
            self._unchanged.add(device)
            return tensors
        # A cap on the number of examples implies excess steps; these are not named separately.
        implied = self._updates.has_excess_steps(device)
        self.clipped[device] = {part: times for part, times in pulled.times.items() if not (implied and counts(part))}
        return pulled.tensors
