"""The aggregate of a round: the weighted mean of its updates, each clipped to the bounds of the run.

Updates are read one at a time in the order of device names, so that memory is one model and equal updates give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedpatch.coordinator.aggregation.limit_settings import MAX_NAMED, MAX_PARTS, Limits
from fedpatch.coordinator.aggregation.norm_clipping import (
    Pace,
    Part,
    References,
    clip,
    counts,
    example_weights,
    limits_of,
    needs_cohort,
    norm_limits,
    norms,
    references,
    remembered,
    weights_norm,
)
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.wire.messages import TrainPlan

Read = Callable[[str], Tensors]


@dataclass(frozen=True)
class AggregateResult:
    """The aggregate of a round.

    Attributes:
        mean: The weighted mean by name.
        clipped: By device whose update was clipped, and by part: the norm as a multiple of its limit.
        capped: By device whose number of examples was capped: the examples that its update weighs.
        references: The references for the next round.
    """

    mean: dict[str, Array]
    clipped: Mapping[str, Mapping[Part, float]] = field(default_factory=dict)
    capped: Mapping[str, int] = field(default_factory=dict)
    references: References = field(default_factory=dict)

    def bounded(self) -> dict[str, int]:
        """Return the number of updates that met each bound."""
        counts = {"norm": len(self.clipped), "num_examples": len(self.capped)}
        return {bound: count for bound, count in counts.items() if count}

    def bounded_devices(self) -> dict[str, list[str]]:
        """Return the bounded parts by device: at most MAX_NAMED devices in the order of names, and MAX_PARTS parts of each."""
        named = sorted({*self.clipped, *self.capped})[:MAX_NAMED]
        return {device: _parts(self.clipped.get(device, {}), device in self.capped) for device in named}


def _parts(times: Mapping[Part, float], capped: bool) -> list[str]:
    farthest = sorted(times, key=lambda part: (-times[part], part))
    return [*(["num_examples"] if capped else []), *farthest][:MAX_PARTS]


def aggregate(
    devices: Sequence[str],
    num_examples: Mapping[str, int],
    read: Read,
    *,
    schema: Schema,
    base: Tensors,
    limits: Limits,
    plan: TrainPlan,
    past: References | None = None,
) -> AggregateResult:
    """Aggregate the updates of a round.

    Where a bound is a multiple of the reference, each update is read twice, the first time for its norms.

    Args:
        devices: The devices whose updates count, in any order.
        num_examples: Reported examples by device.
        read: Reads the tensors of a device's update.
        schema: Names, shapes and dtypes of the tensors that travel.
        base: The global model that the updates were trained on.
        limits: The bounds of the run.
        plan: The training plan, whose steps bound counters.
        past: References of earlier rounds; none in the first round.

    Returns:
        The mean, and the updates that were bounded.

    Raises:
        ValueError: There is no device.
    """
    ordered, past = sorted(devices), past or {}
    counted = {device: num_examples[device] for device in ordered}
    weighs = example_weights(counted, limits.examples)
    paces = {device: Pace.of(plan, weighs[device]) for device in ordered}
    most: Mapping[Part, float] = {}
    now: References = past
    found: dict[str, dict[Part, float]] = {}
    if needs_cohort(schema, limits.norm):
        found = {device: norms(read(device), pace.origin(base, schema), schema) for device, pace in paces.items()}
        cohort = {device: pace.per_unit(found[device]) for device, pace in paces.items()}
        usual = references(cohort, past)
        alone = len(ordered) == 1 and not past
        most = norm_limits(usual, limits.norm, alone=alone, base_norm=weights_norm(base, schema))
        now = remembered(usual, most, past, len(ordered))
    elif limits.norm.action != "off":
        most = norm_limits({}, limits.norm)
    mean = WeightedMean(schema)
    clipped = {}
    for device in ordered:
        tensors = read(device)
        pace = paces[device]
        own = limits_of(most, base, pace) if limits.norm.action != "off" else {}
        pulled = clip(tensors, pace.origin(base, schema), schema, own, found.get(device)) if own else None
        if pulled is not None:
            # Steps beyond those of a capped number of examples are named with it.
            implied = weighs[device] < counted[device]
            clipped[device] = {part: times for part, times in pulled.times.items() if not (implied and counts(part))}
        mean.add(tensors if pulled is None else pulled.tensors, weighs[device])
    capped = {device: weighs[device] for device in ordered if weighs[device] < counted[device]}
    return AggregateResult(mean.result(), {one: times for one, times in clipped.items() if times}, capped, now)
