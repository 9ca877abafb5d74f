"""The aggregate of a round: its updates, each clipped to the bounds of the run, put together by the rule of the run.

Updates are read one at a time in the order of device names, so that memory is one model and equal updates give equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.fixed_values import FixedValues
from fedpatch.coordinator.aggregation.limit_settings import MAX_NAMED, MAX_PARTS, AggregateRule, Limits
from fedpatch.coordinator.aggregation.norm_clipping import clip
from fedpatch.coordinator.aggregation.norm_limits import limits_of, needs_cohort, norm_limits
from fedpatch.coordinator.aggregation.norm_pace import Pace
from fedpatch.coordinator.aggregation.norm_references import References, references, remembered
from fedpatch.coordinator.aggregation.robust_rules import (
    Changes,
    RuleResult,
    Scratch,
    clip_centred,
    take_geometric_median,
    trim,
)
from fedpatch.coordinator.aggregation.stale_updates import Staleness, rebase
from fedpatch.coordinator.aggregation.update_norms import (
    Part,
    counts,
    exact_squares,
    measured_from,
    norms,
    norms_of,
    weights_norm,
)
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean, stored
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.wire.messages import TrainPlan

Read = Callable[[str], Tensors]


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


def _in_memory(shape: tuple[int, int]) -> Array:
    return np.empty(shape, np.float32)


def aggregate(  # noqa: PLR0913 - one keyword per property of the round
    num_examples: Mapping[str, int],
    read: Read,
    *,
    schema: Schema,
    base: Tensors,
    limits: Limits,
    plan: TrainPlan,
    past: References | None = None,
    scratch: Scratch = _in_memory,
    stale: Mapping[str, Staleness] | None = None,
    alike: bool = False,
    members: Mapping[str, int] | None = None,
) -> AggregateResult:
    """Aggregate the updates of a round.

    Where a bound is a multiple of the reference, norms are measured while the mean is summed. If an update is beyond its bound,
    all are read once more for the mean. The robust rules read them several times.

    Args:
        num_examples: Reported examples by device whose update counts.
        read: Reads the tensors of a device's update.
        schema: Names, shapes and dtypes of the tensors that travel.
        base: The global model that the updates were trained on.
        limits: The bounds of the run.
        plan: The training plan, whose steps bound counters.
        past: References of earlier rounds; none in the first round.
        scratch: Makes the table of all values that the rule "trimmed" needs.
        stale: The age of each update whose base is an earlier model. Only the rule "mean" takes such updates.
        alike: Whether each update weighs the same; otherwise an update weighs its examples.
        members: Number of devices whose mean an update is, by device, if more than one.

    Returns:
        The mean, and the updates that were bounded.

    Raises:
        ValueError: There is no device.
    """
    ordered, past, stale, members = sorted(num_examples), past or {}, stale or {}, members or {}
    fixed = FixedValues.of(base, schema)
    read, base = _read_without(fixed, _rebased(read, stale, base, schema) if stale else read), fixed.without(base)
    counted = {device: num_examples[device] for device in ordered}
    weighs = example_weights(counted, limits.examples, members)
    paces = {device: Pace.of(plan, weighs[device], members.get(device, 1)) for device in ordered}
    weights, reported = (dict.fromkeys(ordered, 1),) * 2 if alike else (weighs, counted)
    alone = len(ordered) == 1 and not past
    usual: Mapping[Part, float] = {}
    measured: dict[str, dict[Part, float]] = {}
    factors = {device: stale[device].factor if device in stale else 1.0 for device in ordered} if stale else None
    summed = WeightedMean(schema, base) if limits.rule.name == "mean" else None
    if needs_cohort(schema, limits.norm):
        measured = _measure(read, paces, weights, summed, factors, schema=schema, base=base)
        cohort = {device: pace.per_unit(measured[device]) for device, pace in paces.items()}
        usual = references(cohort, past)
    most = norm_limits(usual, limits.norm, alone=alone, base_norm=weights_norm(base, schema) if alone else 0.0)
    shares: Mapping[str, float] = {}
    bound = most if limits.norm.action != "off" else None
    bounded = _BoundedUpdates(read, weights, reported, paces, bound, measured, schema=schema, base=base)
    if summed is not None:
        mean = summed.result() if measured and bounded.all_within() else _mean_of(bounded, schema, factors)
    else:
        changes = Changes(weighs, bounded.read, base, schema)
        found = _apply_rule(limits.rule, changes, scratch)
        shares = found.shares
        moved = {
            spec.name: stored(base[spec.name] + found.step[spec.name], spec) for spec in schema.specs if spec.trainable
        }
        mean = moved | _mean_of(bounded, schema.subset(set(schema.names) - set(moved)), shares)
    clipped = {device: times for device, times in bounded.clipped.items() if times}
    capped = {device: weighs[device] for device in ordered if weighs[device] < counted[device]}
    norm_factors = {device: max(1.0, times.get("weights", 1.0)) for device, times in clipped.items()}
    pulls = {device: 1.0 - shares.get(device, 1.0) / norm_factors.get(device, 1.0) for device in ordered}
    return AggregateResult(
        fixed.restored({spec.name: mean[spec.name] for spec in schema.specs}),
        clipped,
        capped,
        remembered(usual, most, past, len(ordered)),
        {device: pull for device, pull in pulls.items() if pull > 0},
        len(ordered),
    )


def _measure(
    read: Read,
    paces: Mapping[str, Pace],
    weights: Mapping[str, int],
    mean: WeightedMean | None,
    factors: Mapping[str, float] | None,
    *,
    schema: Schema,
    base: Tensors,
) -> dict[str, dict[Part, float]]:
    """Return the norms of all updates, each read once; if there is a `mean`, add the unchanged updates to it."""
    if mean is None:
        return {device: norms(read(device), pace.origin(base, schema), schema) for device, pace in paces.items()}
    found, fixed = {}, measured_from(base, schema)
    for device, pace in paces.items():
        origins = pace.origin(base, schema) | fixed
        factor = 1.0 if factors is None else factors[device]
        tensors = read(device)
        squares = mean.add_measured(tensors, weights[device], factor, origins=origins)
        found[device] = norms_of(squares | exact_squares(tensors, base, schema), schema)
    return found


def _read_without(fixed: FixedValues, read: Read) -> Read:
    """Return a reader that leaves out the values that never change."""
    return lambda device: fixed.without(read(device))


def _rebased(read: Read, stale: Mapping[str, Staleness], present: Tensors, schema: Schema) -> Read:
    """Return a reader that moves updates of earlier models to the present one."""

    def moved(device: str) -> Tensors:
        tensors = read(device)
        age = stale.get(device)
        return tensors if age is None or not age.versions else rebase(tensors, age.base, present, schema)

    return moved


def _apply_rule(rule: AggregateRule, changes: Changes, scratch: Scratch) -> RuleResult:
    if rule.name == "centred":
        return clip_centred(changes, rule.radius)
    if rule.name == "bucketed":
        return take_geometric_median(changes, rule.bucket_size)
    return trim(changes, rule.beta, scratch)


def _mean_of(bounded: _BoundedUpdates, schema: Schema, shares: Mapping[str, float] | None = None) -> dict[str, Array]:
    """Return the weighted mean of the tensors of `schema`."""
    if not schema.specs:
        return {}
    mean = WeightedMean(schema, bounded.base)
    for device, weight in bounded.weights.items():
        tensors = bounded.read(device)
        mean.add({name: tensors[name] for name in schema.names}, weight, 1.0 if shares is None else shares[device])
    return mean.result()


class _BoundedUpdates:
    """The updates of a round after the bounds of the run; a rule may read them several times."""

    def __init__(
        self,
        read: Read,
        weights: Mapping[str, int],
        counted: Mapping[str, int],
        paces: Mapping[str, Pace],
        most: Mapping[Part, float] | None,
        measured: Mapping[str, Mapping[Part, float]],
        *,
        schema: Schema,
        base: Tensors,
    ) -> None:
        self.weights = weights
        self.clipped: dict[str, dict[Part, float]] = {}
        self._read, self._counted, self._paces, self._most = read, counted, paces, most
        self._schema, self.base, self._measured = schema, base, measured
        self._unchanged: set[str] = set()

    def all_within(self) -> bool:
        """Return whether all updates, which are measured already, are within their bounds."""
        assert self._most is not None, "norms are measured for a bound"
        for device, pace in self._paces.items():
            own = limits_of(self._most, self.base, pace)
            if any(value > own.get(part, math.inf) for part, value in self._measured[device].items()):
                return False
        return True

    def read(self, device: str) -> Tensors:
        """Return the tensors of a device's update, clipped where they are beyond a bound."""
        tensors = self._read(device)
        if self._most is None or device in self._unchanged:
            return tensors
        pace = self._paces[device]
        own = limits_of(self._most, self.base, pace)
        origin, found = pace.origin(self.base, self._schema), self._measured.get(device)
        pulled = clip(tensors, origin, self._schema, own, found) if own else None
        if pulled is None:
            self._unchanged.add(device)
            return tensors
        # A cap on the number of examples implies excess steps; these are not named separately.
        implied = self.weights[device] < self._counted[device]
        self.clipped[device] = {part: times for part, times in pulled.times.items() if not (implied and counts(part))}
        return pulled.tensors
