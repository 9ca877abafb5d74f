"""The aggregate of a round: its updates one at a time, in the order of device names, each within the bounds of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.aggregation import WeightedMean
from coordinator.bounds import allowed, clip, needs_cohort, norms, weights
from coordinator.limits import Limits
from shared.tensors import Array, Schema, Tensors

Read = Callable[[str], Tensors]


@dataclass(frozen=True)
class Folded:
    """The mean, and which updates are not in it as they came: pulled back to a norm, or weighing less than they say."""

    mean: dict[str, Array]
    clipped: tuple[str, ...] = ()
    capped: Mapping[str, int] = field(default_factory=dict)

    def bounded(self) -> dict[str, int]:
        """How many updates met which bound."""
        counts = {"norm": len(self.clipped), "num_examples": len(self.capped)}
        return {bound: count for bound, count in counts.items() if count}


def fold(
    devices: Sequence[str],
    num_examples: Mapping[str, int],
    read: Read,
    *,
    schema: Schema,
    base: Tensors,
    limits: Limits,
) -> Folded:
    """The mean of the updates of `devices`, which `read` gives: memory is one model, and the same updates give the same bits.

    Where a bound is a multiple of the median, each is read twice: first for its norms. Raises ValueError without devices.
    """
    ordered = sorted(devices)
    counted = {device: num_examples[device] for device in ordered}
    weighs = weights(counted, limits.examples)
    cohort = {}
    if needs_cohort(schema, limits.norm):
        cohort = {device: norms(read(device), base, schema) for device in ordered}
    most = allowed(cohort, limits.norm)
    mean = WeightedMean(schema)
    clipped = []
    for device in ordered:
        tensors = read(device)
        pulled = clip(tensors, base, schema, most) if most else None
        if pulled is not None:
            clipped.append(device)
        mean.add(tensors if pulled is None else pulled, weighs[device])
    capped = {device: weighs[device] for device in ordered if weighs[device] < counted[device]}
    return Folded(mean.result(), tuple(clipped), capped)
