"""What one update may weigh and how far it may go: caps on the number of examples, and on the norm of what it changes.

All of it is a function of the updates as a set: neither the order of their arrival nor that of their names matters. Below a
bound an update is used as it is, to the last bit. Above it, it is pulled back along the straight line to the global model of
its round, with all that belongs to it: whatever is true of both ends and of every point between them (that second moments
are not negative, that first moments are no greater than those allow) stays true.

What a batch norm tracks is measured tensor by tensor, for a variance of one layer says nothing of another layer's mean, and
no number that fits the weights fits it: its bound is always a multiple of the median of the round. A tensor beyond that is
pulled back by itself, and the weights stay as they are.

Norm bounding: Sun et al. 2019, "Can You Really Backdoor Federated Learning?", section 4. The median as the measure of what
is usual: fewer than half of the devices cannot move it beyond what the others say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from coordinator.limits import ExamplesCap, NormBound
from shared.errors import UpdateRefused
from shared.messages import TrainPlan
from shared.reasons import RefuseReason
from shared.tensors import Array, Schema, Tensors, TensorSpec, base_name, moment_name

Part = str
"""What has a norm of its own: "weights" (all that is trained), "exp_avg", "exp_avg_sq", and "stats NAME" for each tensor of
floating-point numbers that is tracked and not trained."""

STATS_FACTOR = 10.0
"""Of the median of the round: how far such a tensor may go where `norm_bound` names no factor, with `clip` and `reject`."""

EXAMPLES_FACTOR, EXAMPLES_MARGIN = 2, 100
"""An update may be of so many times the examples that its device registered, and so many more: data grow."""

MAX_SECOND_MOMENT = 1e16
"""Of gradients of 1e8 in each step; nothing that trains has such."""

# Rounding in float32, of each step and of the mean, and of second moments to a level below when they travelled down and up
# (shared.quantise, eight levels an octave); and second moments that are too small to be told from zero.
_SLACK, _FLOOR = 1.1, 1e-16


def weights(num_examples: Mapping[str, int], cap: ExamplesCap) -> dict[str, int]:
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
    total = 0.0
    for spec in schema.specs:
        if _part_of(spec) == part:
            with np.errstate(over="ignore"):
                change = np.subtract(tensors[spec.name], base[spec.name], dtype=np.float64)
                total += float(np.vdot(change, change))
    return math.sqrt(total)


def norms(tensors: Tensors, base: Tensors, schema: Schema) -> dict[Part, float]:
    """Of each part that `schema` has: what is trained, both moments where they travel, and each tracked tensor."""
    parts = sorted({part for spec in schema.specs if (part := _part_of(spec))})
    return {part: norm(tensors, base, schema, part) for part in parts}


def needs_cohort(schema: Schema, bound: NormBound) -> bool:
    """Whether `allowed` has to know the norms of all updates of a round."""
    return bound.action == "auto" or (bound.action != "off" and any(_tracked(spec) for spec in schema.specs))


def check_norm(found: float, bound: NormBound) -> None:
    """Raise UpdateRefused("norm_bound") beyond the bound of `reject`."""
    if bound.action == "reject" and found > bound.limit:
        detail = f"it changes the weights by {found:.3g} (L2 norm), and {bound.limit:g} is the bound"
        raise UpdateRefused(RefuseReason.NORM_BOUND, detail)


def allowed(cohort: Mapping[str, Mapping[Part, float]], bound: NormBound) -> dict[Part, float]:
    """The greatest norm of each part that may be folded in, by the norms of all updates of the round."""
    fixed = {"weights": bound.limit} if bound.action == "clip" else {}
    if bound.action == "off" or not cohort:
        return fixed
    factor = bound.limit if bound.action == "auto" else STATS_FACTOR
    parts = [part for part in next(iter(cohort.values())) if bound.action == "auto" or _alone(part)]
    return fixed | {part: factor * lower_median([one[part] for one in cohort.values()]) for part in parts}


def clip(tensors: Tensors, base: Tensors, schema: Schema, limits: Mapping[Part, float]) -> dict[str, Array] | None:
    """The update pulled back to where no part's norm is beyond its limit; None for one that is within them already."""
    found = {part: norm(tensors, base, schema, part) for part in limits}
    # A little less, for what the products below round up.
    factors = {part: limits[part] / found[part] * (1 - 1e-12) for part in limits if found[part] > limits[part]}
    if not factors:
        return None
    together = min((factor for part, factor in factors.items() if not _alone(part)), default=1.0)
    own = {part: min(factor, together) for part, factor in factors.items() if _alone(part)}
    return {
        spec.name: pulled_back(tensors[spec.name], base[spec.name], own.get(_part_of(spec) or "", together))
        for spec in schema.specs
    }


def pulled_back(end: Array, start: Array, factor: float) -> Array:
    """Start + factor * (end - start), rounded towards the start so that nothing grows; integers stay as they are."""
    if end.dtype.kind != "f" or factor == 1.0:
        return end
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
    if spec.trainable:
        return "weights"
    if _tracked(spec):
        return f"stats {spec.name}"
    if spec.name.endswith(":exp_avg"):
        return "exp_avg"
    return "exp_avg_sq" if spec.name.endswith(":exp_avg_sq") else None


def _tracked(spec: TensorSpec) -> bool:
    return spec.role in ("stats", "buffer") and np.dtype(spec.dtype).kind == "f"


def _alone(part: Part) -> bool:
    return part.startswith("stats ")
