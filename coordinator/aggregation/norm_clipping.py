"""What one update may weigh and how far it may go: caps on the number of examples, and on the norm of what it changes.

All of it is a function of the updates as a set: neither the order of their arrival nor that of their names matters. Below a
bound an update is used as it is, to the last bit. Above it, it is pulled back along the straight line to the global model of
its round: whatever is true of both ends and of every point between them (that second moments are not negative, that first
moments are no greater than those allow) stays true. First and second moments are pulled back together for that reason, and with
the weights where those went too far; weights that are within their bound stay as they are.

What a batch norm tracks is measured tensor by tensor, for a variance of one layer says nothing of another layer's mean, and
no number that fits the weights fits it: its bound is always a multiple of the reference of the round. A tensor beyond that is
pulled back by itself. A moment is measured from where it would be without gradients (`Pace`), so that it is the device's
gradients that are bounded; those of the second moment are squares, and so is the factor of its bound. Counters (step counts of
moments, `num_batches_tracked`) are bounded by the steps that the plan has for as many examples as the update weighs.

The reference of a part is the lower median of the norms in the round. Of one or two updates that is the norm of one
device, so the references of the rounds before (`References`) take part in the median until there are three.

Norm bounding: Sun et al. 2019, "Can You Really Backdoor Federated Learning?", section 4. The median as the measure of what
is usual: fewer than half of the devices cannot move it beyond what the others say.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.aggregation.limit_settings import ExamplesCap, NormBound
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import TRAINABLE, Array, Schema, Tensors, TensorSpec, base_name, moment_name
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.reason_codes import RefuseReason

Part = str
"""What has a norm of its own: "weights" (all that is trained), "exp_avg", "exp_avg_sq", "stats NAME" for each tensor that is
tracked and not trained, and "count NAME" for each counter: the step count of a tensor's moments, batches a layer has seen."""

References = Mapping[Part, tuple[float, ...]]
"""The references of the last rounds by part, the newest first: at most `KEPT_REFERENCES` of each."""

KEPT_REFERENCES = 2
"""One update and two references, or two updates and one, are the three values that a median needs to outvote one."""

STATS_FACTOR = 10.0
"""Of the reference: how far such a tensor may go where `norm_bound` names no factor, with `clip` and `reject`."""

EXAMPLES_FACTOR, EXAMPLES_MARGIN = 2, 100
"""An update may be of so many times the examples that its device registered, and so many more: data grow."""

MAX_SECOND_MOMENT = 1e16
"""Of gradients of 1e8 in each step; nothing that trains has such."""

# Rounding in float32, of each step and of the mean, and of second moments to a level below when they travelled down and up
# (shared.tensors.quantise, eight levels an octave); and second moments that are too small to be told from zero.
_SLACK, _FLOOR = 1.1, 1e-16
_STEP, _BATCHES = ":step", "num_batches_tracked"


def example_weights(num_examples: Mapping[str, int], cap: ExamplesCap) -> dict[str, int]:
    """What each device's update weighs: the examples it reports, or the cap where that is less."""
    most = cap.most
    if cap.factor is not None and num_examples:
        most = math.floor(min(cap.factor * lower_median(num_examples.values()), 2.0**53))  # a Count at most
    return {device: count if most is None else min(count, most) for device, count in num_examples.items()}


def lower_median(values: Iterable[float]) -> float:
    """The middle one of the sorted values, of two the lower; ValueError without any."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing has no median")
    return ordered[(len(ordered) - 1) // 2]


def norm(tensors: Tensors, base: Tensors, schema: Schema, part: Part = "weights") -> float:
    """L2 norm of what an update changes in one part of the model; infinite where float64 has no number for it."""
    return norms(tensors, base, schema, {part}).get(part, 0.0)


def norms(tensors: Tensors, base: Tensors, schema: Schema, parts: Container[Part] | None = None) -> dict[Part, float]:
    """Of each part that `schema` has (and that is among `parts`, where those are given)."""
    squares: dict[Part, float] = {}
    for spec in schema.specs:
        part = _part_of(spec)
        if part is not None and (parts is None or part in parts):
            with np.errstate(over="ignore"):
                change = np.subtract(tensors[spec.name], base[spec.name], dtype=np.float64).reshape(-1)
                squares[part] = squares.get(part, 0.0) + float(np.dot(change, change))
    return {part: math.sqrt(squares[part]) for part in sorted(squares)}


def weights_norm(base: Tensors, schema: Schema) -> float:
    """L2 norm of what is trained."""
    return math.sqrt(
        sum(float(np.sum(np.square(base[spec.name], dtype=np.float64))) for spec in schema.specs if spec.trainable)
    )


def needs_cohort(schema: Schema, bound: NormBound) -> bool:
    """Whether `references` have to be known: the norms of all updates of a round."""
    return bound.action == "auto" or (
        bound.action != "off" and any(_alone(_part_of(one) or "") for one in schema.specs)
    )


def check_norm(found: float, bound: NormBound) -> None:
    """Raise UpdateRefused("norm_bound") beyond the bound of `reject`."""
    if bound.action == "reject" and found > bound.limit:
        detail = f"it changes the weights by {found:.3g} (L2 norm), and {bound.limit:g} is the bound"
        raise UpdateRefused(RefuseReason.NORM_BOUND, detail)


@dataclass(frozen=True)
class Pace:
    """How far a device's update may be expected to go by the plan alone: in `steps` steps with the moments' `decays`."""

    steps: int
    decays: Mapping[Part, float]

    @classmethod
    def of(cls, plan: TrainPlan, num_examples: int) -> Pace:
        """That of an update from so many examples."""
        steps = plan.steps_for(num_examples)
        return cls(steps, {"exp_avg": plan.beta_1**steps, "exp_avg_sq": plan.beta_2**steps})

    def origin(self, base: Tensors, schema: Schema) -> dict[str, Array]:
        """The global model `base`, with its moments as they would be after the steps without any gradient.

        From there on a moment is a mean of gradients, or of their squares, and no device's norm depends on what the moments
        of the global model were: one that has been pushed up is not taken for the measure of the next push.
        """
        moved = dict(base)
        for spec in schema.specs:
            decay = self.decays.get(_part_of(spec) or "")
            if decay is not None:
                moved[spec.name] = np.asarray(base[spec.name] * decay, spec.dtype)
        return moved

    def unit(self, part: Part) -> float:
        """What norms of the part are divided by, to be compared between devices that take few steps and many."""
        if counts(part):
            return float(max(1, self.steps))
        return 1.0 - self.decays.get(part, 0.0) or 1.0

    def per_unit(self, found: Mapping[Part, float]) -> dict[Part, float]:
        """Norms by part, each in its unit."""
        return {part: value / self.unit(part) for part, value in found.items()}


def references(cohort: Mapping[str, Mapping[Part, float]], past: References) -> dict[Part, float]:
    """What is usual in this round, by part: the lower median of the norms `per_unit` and, of fewer than three, of the past.

    Empty without updates.
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
    """The greatest norm of each part that may be folded in, by the `references` of the round, in its unit.

    `alone` says that there is one update and no round before it: `base_norm`, the norm of the global model's weights, is
    then the measure of what they may change, unless it is zero; and counters count once a step.
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
    """`past` after a round of so many updates; that of a single one counts for no more than it was allowed."""
    now = {}
    for part, value in usual.items():
        kept = value if updates > 1 else min(value, limits.get(part, value))
        now[part] = (kept, *past.get(part, ()))[:KEPT_REFERENCES]
    return {**past, **now}


def limits_of(limits: Mapping[Part, float], base: Tensors, pace: Pace) -> dict[Part, float]:
    """`limits` for an update of that pace, with those of the step counts of its moments."""
    own = {part: limit * pace.unit(part) for part, limit in limits.items()}
    for name in base:
        if name.endswith(_STEP):
            own[f"count {name}"] = _step_limit(base[name], pace.steps)
    return own


def clip(tensors: Tensors, base: Tensors, schema: Schema, limits: Mapping[Part, float]) -> Clipped | None:
    """The update pulled back to where no part's norm is beyond its limit; None for one that is within them already."""
    found = norms(tensors, base, schema, limits)
    # A little less, for what the products below round up.
    factors = {part: limits[part] / found[part] * (1 - 1e-12) for part in found if found[part] > limits[part]}
    if not factors:
        return None
    together = factors.get("weights", 1.0)
    both = min(together, factors.get("exp_avg", 1.0), factors.get("exp_avg_sq", 1.0))

    def factor(spec: TensorSpec) -> float:
        part = _part_of(spec) or ""
        if part == "weights":
            return together
        if not _alone(part):
            return both
        # Integers do not follow the weights: there is nothing between two of them.
        return min(factors.get(part, 1.0), together if np.dtype(spec.dtype).kind == "f" else 1.0)

    pulled = {spec.name: interpolate_toward(tensors[spec.name], base[spec.name], factor(spec)) for spec in schema.specs}
    return Clipped(pulled, {part: found[part] / limits[part] if limits[part] else math.inf for part in factors})


@dataclass(frozen=True)
class Clipped:
    """An update as it counts, and how many times its bound each part was that went beyond it."""

    tensors: dict[str, Array]
    times: dict[Part, float]


def interpolate_toward(end: Array, start: Array, factor: float) -> Array:
    """Start + factor * (end - start), rounded towards the start so that nothing grows."""
    if end.dtype.kind not in "fiu" or factor == 1.0:
        return end
    if end.dtype.kind != "f":
        way = np.trunc(factor * (end.astype(np.float64) - start.astype(np.float64)))
        return np.asarray(start + way.astype(np.int64), end.dtype)
    origin = start.astype(np.float64)
    # What has an infinite norm has the factor 0, and 0 times an infinite change is no number.
    exact = origin + (factor * (end - origin) if factor > 0 else 0.0)
    moved = np.asarray(exact, end.dtype)
    too_far = np.abs(moved.astype(np.float64) - origin) > np.abs(exact - origin)
    return np.where(too_far, np.nextafter(moved, start), moved)


def check_moments(tensors: Tensors, schema: Schema, plan: TrainPlan) -> None:
    """Raise UpdateRefused("out_of_range") for moments that no gradients could have made.

    With m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2 from zero, and with every mean of such pairs, Cauchy and
    Schwarz give m^2 <= c v, c = (1 - b1)^2 / ((1 - b2) (1 - b1^2 / b2)). So a device cannot send the others
    first moments that make their next steps long.
    """
    bound = _first_by_second(plan)
    for spec in schema.specs:
        if spec.role != "moment" or not spec.name.endswith(":exp_avg_sq"):
            continue
        second = tensors[spec.name]
        if second.size and float(second.max()) > MAX_SECOND_MOMENT:
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"{spec.name} is above {MAX_SECOND_MOMENT:g}")
        first_name = moment_name(base_name(spec.name), "exp_avg")
        if bound is None or first_name not in schema:
            continue
        first = np.abs(tensors[first_name].astype(np.float64))
        if (first > _SLACK * bound * np.sqrt(second.astype(np.float64)) + _FLOOR).any():
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"{first_name} is greater than {spec.name} allows")


def check_steps(tensors: Tensors, base: Tensors, schema: Schema, steps: int) -> None:
    """Raise UpdateRefused("out_of_range") where the step count of a moment is not one that so many steps lead to.

    `base` is the global model of the round, `steps` are those of the plan for the examples that the update reports.
    """
    for spec in schema.specs:
        if spec.role != "moment" or not spec.name.endswith(_STEP):
            continue
        grown = float(tensors[spec.name]) - float(base[spec.name])
        if not 0 <= grown <= _step_limit(base[spec.name], steps):
            detail = f"{spec.name} changes by {grown:.6g}, and the plan has {steps} steps for its examples"
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, detail)


def check_registered(num_examples: int, registered: int | None) -> None:
    """Raise UpdateRefused("num_examples") for an update of far more examples than its device registered (None: unknown)."""
    if registered is not None and num_examples > EXAMPLES_FACTOR * registered + EXAMPLES_MARGIN:
        detail = f"trained on {num_examples} examples, and registered {registered}"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)


def _first_by_second(plan: TrainPlan) -> float | None:
    if plan.beta_1**2 >= plan.beta_2:
        return None  # the series has no sum, and so there is no bound
    return (1 - plan.beta_1) / math.sqrt((1 - plan.beta_2) * (1 - plan.beta_1**2 / plan.beta_2))


def _part_of(spec: TensorSpec) -> Part | None:
    if spec.role in TRAINABLE:
        return "weights"
    if spec.role != "moment":
        if np.dtype(spec.dtype).kind == "b":
            return None
        return f"{'count' if spec.name.endswith(_BATCHES) else 'stats'} {spec.name}"
    moment = spec.name.rpartition(":")[2]
    return moment if moment in ("exp_avg", "exp_avg_sq") else f"count {spec.name}"


def _alone(part: Part) -> bool:
    return part.startswith(("stats ", "count "))


def counts(part: Part) -> bool:
    """Whether the part is a counter."""
    return part.startswith("count ")


def _floored(value: float, *, alone: bool) -> float:
    """A counter may count every step, whatever the others do."""
    return 1.0 if alone else max(1.0, value)


def _step_limit(base: Array, steps: int) -> float:
    """Steps of one, each rounded in float32: beyond 2^24 that is two."""
    return steps * (1.0 + float(np.spacing(np.float32(float(base) + steps))))
