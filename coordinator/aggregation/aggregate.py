"""The aggregate of a round: its updates one at a time, in the order of device names, each within the bounds of the run."""

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
    """The mean, and which updates are not in it as they came: pulled back to a norm, or weighing less than they say.

    `clipped` has, by device, how many times its bound each part of the update was that went beyond it. `references` are
    those of the last rounds with this one, for the next.
    """

    mean: dict[str, Array]
    clipped: Mapping[str, Mapping[Part, float]] = field(default_factory=dict)
    capped: Mapping[str, int] = field(default_factory=dict)
    references: References = field(default_factory=dict)

    def bounded(self) -> dict[str, int]:
        """How many updates met which bound."""
        counts = {"norm": len(self.clipped), "num_examples": len(self.capped)}
        return {bound: count for bound, count in counts.items() if count}

    def bounded_devices(self) -> dict[str, list[str]]:
        """What was bounded of which device: at most MAX_NAMED devices by name, and MAX_PARTS parts of each."""
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
    """The mean of the updates of `devices`, which `read` gives: memory is one model, and the same updates give the same bits.

    Where a bound is a multiple of the reference, each is read twice: first for its norms.

    Args:
        devices: Those whose updates count, in any order.
        num_examples: Examples that each of them reports.
        read: The tensors of a device's update.
        schema: Of what travels.
        base: The global model that the updates were trained on.
        limits: The bounds of the run.
        plan: What the devices were asked to do, which says how far counters go.
        past: The references of the rounds before; none in the first.

    Raises:
        ValueError: Without devices.
    """
    ordered, past = sorted(devices), past or {}
    counted = {device: num_examples[device] for device in ordered}
    weighs = example_weights(counted, limits.examples)
    paces = {device: Pace.of(plan, weighs[device]) for device in ordered}
    most: Mapping[Part, float] = {}
    now: References = past
    if needs_cohort(schema, limits.norm):
        cohort = {
            device: pace.per_unit(norms(read(device), pace.origin(base, schema), schema))
            for device, pace in paces.items()
        }
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
        pulled = clip(tensors, pace.origin(base, schema), schema, own) if own else None
        if pulled is not None:
            # Steps beyond those of a capped number of examples are named with it.
            implied = weighs[device] < counted[device]
            clipped[device] = {part: times for part, times in pulled.times.items() if not (implied and counts(part))}
        mean.add(tensors if pulled is None else pulled.tensors, weighs[device])
    capped = {device: weighs[device] for device in ordered if weighs[device] < counted[device]}
    return AggregateResult(mean.result(), {one: times for one, times in clipped.items() if times}, capped, now)
