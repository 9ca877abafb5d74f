"""Bounds of one update: a cap on the examples that it weighs, and a bound on the norm of its change.

All functions depend on the updates as a set. The order of their arrival and the order of their names do not matter.

Within its bound an update is used unchanged, to the last bit. Beyond it, the update is clipped: moved back along the straight
line to the global model of its round. Properties that hold on the whole line stay true (second moments are not negative, first
moments are no greater than the second moments allow). For that reason first and second moments are clipped by the same factor,
and by the factor of the weights if the weights are beyond their bound. Weights within their bound stay.

Each part of a model has a norm of its own:

- The weights, that is all trained tensors, have one norm together.
- Statistics of batch norm have a norm per tensor, since the variance of one layer has no relation to the mean of another.
  Their bound is always a multiple of the round's reference, since a number that fits the weights does not fit statistics. Each
  is clipped alone.
- A moment is measured from its value after the same steps without gradients (`Pace`), so that the bound limits the device's
  gradients. Gradients enter the second moment as squares, so the factor of its bound is a square too.
- The control variate of SCAFFOLD has a norm of its own. If any part of an update is clipped, its control variate counts as
  unchanged. The device keeps its previous one, so that the server's control variate stays the mean of the devices' control
  variates.
- Counters (step counts of moments, `num_batches_tracked`) are bounded by the steps that the plan has for as many examples as
  the update weighs.

The reference of a part is the lower median of its norms in the round. With one or two updates that median is the norm of a
single device, so references of earlier rounds (`References`) are added until there are three values.

The update of a relay is the mean of its members' updates. Its norm is not divided by their number: a mean of updates within a
bound is within that bound, and the mean of honest updates, which point the same way, is hardly shorter than one of them. Only
the weight grows with the members: a relay with m members can move the model as far as m devices can.

Norm bounding: Sun et al. 2019, "Can You Really Backdoor Federated Learning?", section 4. The median is the reference because
fewer than half of the devices cannot move it beyond the values of the others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedpatch.coordinator.aggregation.exact_integers import difference, has_large
from fedpatch.coordinator.aggregation.limit_settings import ExamplesCap, NormBound
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import TRAINABLE, Array, Schema, Tensors, TensorSpec
from fedpatch.shared.tensors.update_checks import STEP, step_limit
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import CONTROL
from fedpatch.shared.wire.reason_codes import RefuseReason

Part = str
"""A part of a model with a norm of its own: "weights" (all trained tensors), "exp_avg", "exp_avg_sq", "control", "stats NAME"
for each tensor that is tracked and not trained, "count NAME" for each counter (a moment's steps, a layer's batches)."""

References = Mapping[Part, tuple[float, ...]]
"""References of earlier rounds by part, the newest first, at most `KEPT_REFERENCES` of each."""

KEPT_REFERENCES = 2
"""One update and two references, or two updates and one reference, are the three values that a median needs to outvote one."""

STATS_FACTOR = 10.0
"""Multiple of the reference that bounds a tensor of statistics where `norm_bound` has no factor, with `clip` and `reject`."""

EXAMPLES_FACTOR, EXAMPLES_MARGIN = 2, 100
"""An update may have EXAMPLES_FACTOR times the registered examples of its device and EXAMPLES_MARGIN more, since data grow."""

_BATCHES = "num_batches_tracked"

DOT_BLOCK = 8192
"""Values in a block, whose change fits into the processor's cache. From 10,000 values on, OpenBLAS divides a product of two
vectors between threads, which takes ten times the processor's time."""


def example_weights(
    num_examples: Mapping[str, int], cap: ExamplesCap, members: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the weight of each device's update in examples: the reported number, or the cap if that is less.

    The cap is for a single device. A relay may weigh as much as its members together. In the median it counts as that many
    devices with the mean of their examples.

    Args:
        num_examples: Reported examples by device.
        cap: The cap of the run.
        members: Number of devices that a device speaks for, by device, if more than one.

    Example:
        >>> example_weights({"ann": 50, "bob": 10, "site": 900}, ExamplesCap(most=20), {"site": 30})
        {'ann': 20, 'bob': 10, 'site': 600}
    """
    members = members or {}
    most = cap.most
    if cap.factor is not None and num_examples:
        each = sorted(
            (count / members.get(device, 1), members.get(device, 1)) for device, count in num_examples.items()
        )
        most = math.floor(min(cap.factor * _weighted_lower_median(each), 2.0**53))  # a Count at most
    return {
        device: count if most is None else min(count, most * members.get(device, 1))
        for device, count in num_examples.items()
    }


def _weighted_lower_median(ordered: Sequence[tuple[float, int]]) -> float:
    """Return the lower median of sorted values, each with its number of occurrences."""
    seen = list(accumulate(times for _, times in ordered))
    return ordered[bisect_right(seen, (seen[-1] - 1) // 2)][0]


def lower_median(values: Iterable[float]) -> float:
    """Return the median of the values, the lower of two in the middle.

    Raises:
        ValueError: There is no value.

    Example:
        >>> lower_median([4.0, 1.0, 3.0, 2.0])
        2.0
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("the median of no values is undefined")
    return ordered[(len(ordered) - 1) // 2]


def norm(tensors: Tensors, base: Tensors, schema: Schema, part: Part = "weights") -> float:
    """Return the L2 norm of an update's change of one part of the model.

    Args:
        tensors: The update.
        base: The global model that it was trained on.
        schema: Names, shapes and dtypes of both.
        part: The part to measure.

    Returns:
        The norm; 0 for a part that the schema does not have, infinity where the sum of squares exceeds float64.
    """
    return norms(tensors, base, schema, {part}).get(part, 0.0)


def norms(tensors: Tensors, base: Tensors, schema: Schema, parts: Container[Part] | None = None) -> dict[Part, float]:
    """Return the L2 norm of an update's change by part.

    Args:
        tensors: The update.
        base: The global model that it was trained on.
        schema: Names, shapes and dtypes of both.
        parts: The parts to measure; all of the schema's if left out.
    """
    measured = [spec for spec in schema.specs if (part := _part_of(spec)) and (parts is None or part in parts)]
    found = {spec.name: squared_distance(tensors[spec.name], base[spec.name]) for spec in measured}
    return norms_of(found, schema)


def norms_of(squares: Mapping[str, float], schema: Schema) -> dict[Part, float]:
    """Return the L2 norm by part.

    Args:
        squares: The squared L2 distance by tensor; tensors that are missing here, or have no part, are left out.
        schema: The tensors in the order in which squares are added.
    """
    sums: dict[Part, float] = {}
    for spec in schema.specs:
        if spec.name in squares and (part := _part_of(spec)):
            sums[part] = sums.get(part, 0.0) + squares[spec.name]
    return {part: math.sqrt(sums[part]) for part in sorted(sums)}


def measured_from(base: Tensors, schema: Schema) -> dict[str, Array]:
    """Return the tensors of the global model from which norms are measured, in float64.

    Moments have origins of their own, and tensors of large integers are measured apart (`exact_squares`).
    """
    return {
        spec.name: base[spec.name].astype(np.float64)
        for spec in schema.specs
        if spec.role != "moment" and _part_of(spec) and not has_large(base[spec.name])
    }


def exact_squares(tensors: Tensors, base: Tensors, schema: Schema) -> dict[str, float]:
    """Return the squared L2 distance by name for the tensors in which the global model has large integers.

    Args:
        tensors: The update.
        base: The global model.
        schema: Names of the tensors.
    """
    names = (name for name in schema.names if has_large(base[name]))
    return {name: squared_distance(tensors[name], base[name]) for name in names}


def squared_distance(end: Array, start: Array) -> float:
    """Return the squared L2 distance of two tensors of one shape, in float64; infinity beyond the range of float64."""
    ends, starts, total = end.reshape(-1), start.reshape(-1), 0.0
    with np.errstate(over="ignore"):
        for first in range(0, len(ends), DOT_BLOCK):
            block = slice(first, first + DOT_BLOCK)
            change = difference(ends[block], starts[block])
            total += float(np.dot(change, change))
    return total


def squared_norm(change: Array) -> float:
    """Return the squared L2 norm of a float64 tensor; for a change, equal to `squared_distance` to the last bit."""
    flat = change.reshape(-1)
    with np.errstate(over="ignore"):
        blocks = (flat[first : first + DOT_BLOCK] for first in range(0, len(flat), DOT_BLOCK))
        return sum((float(np.dot(block, block)) for block in blocks), 0.0)


def weights_norm(base: Tensors, schema: Schema) -> float:
    """Return the L2 norm of all trained tensors."""
    return math.sqrt(
        sum(float(np.sum(np.square(base[spec.name], dtype=np.float64))) for spec in schema.specs if spec.trainable)
    )


def needs_cohort(schema: Schema, bound: NormBound) -> bool:
    """Return whether the bound depends on `references`, for which the norms of all updates are measured first."""
    return bound.action == "auto" or (bound.action != "off" and any(_alone(_part_of(one)) for one in schema.specs))


def check_norm(found: float, bound: NormBound) -> None:
    """Raise UpdateRefused("norm_bound") for a norm beyond the bound, if the bound's action is to reject."""
    if bound.action == "reject" and found > bound.limit:
        detail = f"it changes the weights by {found:.3g} (L2 norm); the bound is {bound.limit:g}"
        raise UpdateRefused(RefuseReason.NORM_BOUND, detail)


@dataclass(frozen=True)
class Pace:
    """The change of an update that follows from the plan alone.

    Attributes:
        steps: Training steps of the device; for a relay, of a member with the mean number of examples.
        decays: The factor by which steps without any gradient multiply a moment, by part.
        most_steps: The most steps that a counter may have counted; for a relay, the steps of a member with all its examples.
    """

    steps: int
    decays: Mapping[Part, float]
    most_steps: int

    @classmethod
    def of(cls, plan: TrainPlan, num_examples: int, members: int = 1) -> Pace:
        """Return the pace of an update.

        Args:
            plan: The training plan of the round.
            num_examples: Training examples.
            members: Devices that have these examples; the update is their mean.
        """
        each = max(1, num_examples // members)
        steps = plan.steps_for(each)
        moved = sum(one.steps_for(each, plan.batch_size) for one in plan.parts if one.train != "private")
        decays = {"exp_avg": plan.beta_1**moved, "exp_avg_sq": plan.beta_2**moved}
        return cls(steps, decays, plan.steps_for(num_examples))

    def origin(self, base: Tensors, schema: Schema) -> dict[str, Array]:
        """Return the global model `base` with its moments after the steps of the plan without any gradient.

        The distance from there is a mean of gradients, or of their squares. So no norm depends on the moments of the global
        model: a moment that an attack has increased does not allow a larger increase in the next round.
        """
        moved = dict(base)
        for spec in schema.specs:
            decay = self.decays.get(_part_of(spec))
            if decay is not None:
                moved[spec.name] = np.asarray(base[spec.name] * decay)
        return moved

    def unit(self, part: Part) -> float:
        """Return the divisor that makes norms of the part comparable between devices with few and with many steps."""
        if counts(part):
            return float(max(1, self.steps))
        return 1.0 - self.decays.get(part, 1.0) or 1.0

    def per_unit(self, found: Mapping[Part, float]) -> dict[Part, float]:
        """Return norms by part, each divided by its unit."""
        return {part: value / self.unit(part) for part, value in found.items()}


def references(cohort: Mapping[str, Mapping[Part, float]], past: References) -> dict[Part, float]:
    """Return the reference of each part in this round.

    Args:
        cohort: Norms per unit (`Pace.per_unit`) by part, of each device.
        past: References of earlier rounds; with fewer than three devices they are added to the norms.

    Returns:
        The lower median by part; empty without devices.
    """
    if not cohort:
        return {}
    more = KEPT_REFERENCES + 1 - len(cohort)
    return {
        part: lower_median([*(one[part] for one in cohort.values()), *past.get(part, ())[: max(0, more)]])
        for part in next(iter(cohort.values()))
    }


def norm_limits(
    usual: Mapping[Part, float], bound: NormBound, *, alone: bool = False, base_norm: float = 0.0
) -> dict[Part, float]:
    """Return the greatest norm of each part that is aggregated unchanged, per unit.

    Args:
        usual: The `references` of the round.
        bound: The run's bound.
        alone: Whether there is one update, and no round before it. The reference of a counter is then one a step.
        base_norm: L2 norm of the global model's weights. With `alone` the change of the weights is bounded by a multiple of
            it too, unless it is zero.
    """
    fixed = {"weights": bound.limit} if bound.action == "clip" else {}
    if bound.action == "off":
        return {}
    factor = bound.limit if bound.action == "auto" else STATS_FACTOR
    usual = {part: _floored(value, alone=alone) if counts(part) else value for part, value in usual.items()}
    if bound.action != "auto":
        return {part: factor * value for part, value in usual.items() if _alone(part)} | fixed
    limits = {part: factor ** (2 if part == "exp_avg_sq" else 1) * value for part, value in usual.items()}
    if alone and base_norm > 0 and "weights" in limits:
        limits["weights"] = min(limits["weights"], factor * base_norm)
    return limits


def remembered(
    usual: Mapping[Part, float], limits: Mapping[Part, float], past: References, updates: int
) -> dict[Part, tuple[float, ...]]:
    """Return the references to keep after a round.

    Args:
        usual: The references of the round.
        limits: The limits of the round per unit. The reference of a single update is kept up to its limit.
        past: The references before the round.
        updates: Number of updates in the round.
    """
    now = {}
    for part, value in usual.items():
        kept = value if updates > 1 else min(value, limits.get(part, value))
        now[part] = (kept, *past.get(part, ()))[:KEPT_REFERENCES]
    return {**past, **now}


def limits_of(limits: Mapping[Part, float], base: Tensors, pace: Pace) -> dict[Part, float]:
    """Return the limits of one update.

    Args:
        limits: The limits of the round per unit.
        base: The global model of the round.
        pace: The steps of the update, which also bound the step counts of its moments.
    """
    own = {part: limit * pace.unit(part) for part, limit in limits.items()}
    for name in base:
        if name.endswith(STEP):
            own[f"count {name}"] = step_limit(base[name], pace.most_steps)
    return own


def clip(
    tensors: Tensors,
    base: Tensors,
    schema: Schema,
    limits: Mapping[Part, float],
    found: Mapping[Part, float] | None = None,
) -> Clipped | None:
    """Clip an update so that no part's norm is beyond its limit.

    Args:
        tensors: The update.
        base: The model from which its norms are measured (`Pace.origin`).
        schema: Names, shapes and dtypes of both.
        limits: The greatest norm by part (`limits_of`).
        found: The `norms` of all parts, if they are known.

    Returns:
        The clipped update; None for an update within all limits.
    """
    found = norms(tensors, base, schema, limits) if found is None else found
    # A little less, since the products below may round up.
    factors = {
        part: limits[part] / value * (1 - 1e-12) for part, value in found.items() if value > limits.get(part, math.inf)
    }
    if not factors:
        return None
    together = factors.get("weights", 1.0)
    both = min(together, factors.get("exp_avg", together), factors.get("exp_avg_sq", together))

    def factor(spec: TensorSpec) -> float:
        part = _part_of(spec)
        if part == "weights":
            return together
        if part == CONTROL:
            return 0.0
        if not _alone(part):
            return both
        # Integers do not follow the weights: no value lies between two of them.
        alone = factors.get(part, 1.0)
        return min(alone, together) if np.dtype(spec.dtype).kind == "f" else alone

    pulled = {spec.name: interpolate_toward(tensors[spec.name], base[spec.name], factor(spec)) for spec in schema.specs}
    return Clipped(pulled, {part: found[part] / limits[part] if limits[part] else math.inf for part in factors})


@dataclass(frozen=True)
class Clipped:
    """A clipped update.

    Attributes:
        tensors: The tensors that are aggregated.
        times: The norm as a multiple of its limit, by part that was beyond its limit.
    """

    tensors: dict[str, Array]
    times: dict[Part, float]


def interpolate_toward(end: Array, start: Array, factor: float) -> Array:
    """Return start + factor * (end - start), rounded towards `start` so that no change grows.

    Args:
        end: The tensor of the update.
        start: The tensor of the global model, of the same shape and dtype.
        factor: From 0 to 1.
    """
    if end.dtype.kind not in "fiu" or factor == 1.0:
        return end
    if end.dtype.kind != "f":
        way = np.trunc(factor * difference(end, start))
        return np.asarray(start + way.astype(np.int64), end.dtype)
    origin = start.astype(np.float64)
    # An infinite norm has the factor 0, and 0 times an infinite change is NaN.
    exact = origin + (factor * (end - origin) if factor > 0 else 0.0)
    moved = np.asarray(exact, end.dtype)
    too_far = np.abs(moved.astype(np.float64) - origin) > np.abs(exact - origin)
    return np.where(too_far, np.nextafter(moved, start), moved)


def check_members(members: int, registered: int | None, most: int) -> None:
    """Raise UpdateRefused("num_examples") for more members than the run allows, or far more than the device has registered.

    Args:
        members: Devices whose mean the update is.
        registered: Members that the device registered; None: unknown.
        most: The run's `max_members`.
    """
    if members > most:
        detail = f"the mean of {members} devices; max_members is {most}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)
    if registered is not None and members > EXAMPLES_FACTOR * registered:
        detail = f"the mean of {members} devices, registered {registered}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)


def check_registered(num_examples: int, registered: int | None) -> None:
    """Raise UpdateRefused("num_examples") for far more examples than the device has registered (None: unknown)."""
    if registered is not None and num_examples > EXAMPLES_FACTOR * registered + EXAMPLES_MARGIN:
        detail = f"trained on {num_examples} examples, registered {registered}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)


def _part_of(spec: TensorSpec) -> Part:
    """The part of a tensor; "" for a tensor without a norm."""
    if spec.role in TRAINABLE:
        return "weights"
    if spec.role != "moment":
        if np.dtype(spec.dtype).kind == "b":
            return ""
        return f"{'count' if spec.name.endswith(_BATCHES) else 'stats'} {spec.name}"
    moment = spec.name.rpartition(":")[2]
    return moment if moment in ("exp_avg", "exp_avg_sq", CONTROL) else f"count {spec.name}"


def _alone(part: Part) -> bool:
    return part.startswith(("stats ", "count "))


def counts(part: Part) -> bool:
    """Return whether the part is a counter."""
    return part.startswith("count ")


def _floored(value: float, *, alone: bool) -> float:
    """The reference of a counter is at least one a step, since a device may count each step in any case."""
    return 1.0 if alone else max(1.0, value)
