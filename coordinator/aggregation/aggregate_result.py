"""The aggregate of a round, with the updates that its bounds or its rule changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedpatch.coordinator.aggregation.limit_syntax import MAX_NAMED, MAX_PARTS
from fedpatch.coordinator.aggregation.reference_norms import References
from fedpatch.coordinator.aggregation.update_norms import Part
from fedpatch.shared.tensors.arrays import Array


@dataclass(frozen=True)
class AggregateResult:
    """The aggregate of a round.

    Attributes:
        mean: The aggregate by name; with the rule "mean", the weighted mean.
        clipped: The norm as a multiple of its limit, by device whose update was clipped and by part.
        capped: The examples that an update weighs, by device whose number of examples was capped.
        references: The references for the next round.
        pulls: The share of the change that was taken away, by device whose update did not count whole.
        num_updates: Number of updates.
    """

    mean: dict[str, Array]
    clipped: Mapping[str, Mapping[Part, float]] = field(default_factory=dict)
    capped: Mapping[str, int] = field(default_factory=dict)
    references: References = field(default_factory=dict)
    pulls: Mapping[str, float] = field(default_factory=dict)
    num_updates: int = 0

    def bounded(self) -> dict[str, int]:
        """Return the number of updates that each bound changed."""
        counts = {"norm": len(self.clipped), "num_examples": len(self.capped)}
        return {bound: count for bound, count in counts.items() if count}

    def bounded_devices(self) -> dict[str, list[str]]:
        """Return the bounded parts by device: at most MAX_NAMED devices in the order of names, and MAX_PARTS parts of each."""
        named = sorted({*self.clipped, *self.capped})[:MAX_NAMED]
        return {device: _parts(self.clipped.get(device, {}), device in self.capped) for device in named}

    def farthest_pulls(self) -> dict[str, float]:
        """Return, by device, the share that was taken away: at most MAX_NAMED devices, the farthest first."""
        ordered = sorted(self.pulls, key=lambda device: (-self.pulls[device], device))
        return {device: self.pulls[device] for device in ordered[:MAX_NAMED]}

    def pull_quantiles(self) -> dict[str, float]:
        """Return `p50`, `p90` and `max` of the share that was taken away, over all updates; empty if all count whole."""
        if not self.pulls:
            return {}
        shares = sorted([*self.pulls.values(), *[0.0] * (self.num_updates - len(self.pulls))])
        last = len(shares) - 1
        return {"p50": shares[last // 2], "p90": shares[math.ceil(0.9 * last)], "max": shares[last]}


def _parts(times: Mapping[Part, float], capped: bool) -> list[str]:
    farthest = sorted(times, key=lambda part: (-times[part], part))
    return [*(["num_examples"] if capped else []), *farthest][:MAX_PARTS]
