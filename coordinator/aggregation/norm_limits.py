"""The greatest norm of each part that is aggregated unchanged.

Statistics of batch norm are bounded by a multiple of the round's reference in any case, since a number that fits the weights
does not fit statistics. Gradients enter the second moment as squares, so the factor of its bound is a square too. Counters are
bounded by the steps that the plan has for as many examples as the update weighs.

The update of a relay is the mean of its members' updates. Its norm is not divided by their number: a mean of updates within a
bound is within that bound, and the mean of honest updates, which point the same way, is hardly shorter than one of them. Only
the weight grows with the members: a relay with m members can move the model as far as m devices can.

Norm bounding: Sun et al. 2019, "Can You Really Backdoor Federated Learning?", section 4.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.coordinator.aggregation.limit_syntax import NormBound
from fedpatch.coordinator.aggregation.norm_pace import Pace
from fedpatch.coordinator.aggregation.update_norms import Part, bounded_alone, counts, part_of
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Schema, Tensors
from fedpatch.shared.tensors.moment_bounds import STEP, step_limit
from fedpatch.shared.wire.reason_codes import RefuseReason

STATS_FACTOR = 10.0
"""Multiple of the reference that bounds a tensor of statistics where `norm_bound` has no factor, with `clip` and `reject`."""


def needs_cohort(schema: Schema, bound: NormBound) -> bool:
    """Return whether the bound depends on `references`, for which the norms of all updates are measured first."""
    return bound.action == "auto" or (
        bound.action != "off" and any(bounded_alone(part_of(one)) for one in schema.specs)
    )


def check_norm(found: float, bound: NormBound) -> None:
    """Raise UpdateRefused("norm_bound") for a norm beyond the bound, if the bound's action is to reject."""
    if bound.action == "reject" and found > bound.limit:
        detail = f"it changes the weights by {found:.3g} (L2 norm); the bound is {bound.limit:g}"
        raise UpdateRefused(RefuseReason.NORM_BOUND, detail)


def norm_limits(
    usual: Mapping[Part, float], bound: NormBound, *, alone: bool = False, base_norm: float = 0.0
) -> dict[Part, float]:
    """Return the greatest norm of each part that is aggregated unchanged, per unit.

    Args:
        usual: The `references` of the round.
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
        return {part: factor * value for part, value in usual.items() if bounded_alone(part)} | fixed
    limits = {part: factor ** (2 if part == "exp_avg_sq" else 1) * value for part, value in usual.items()}
    if alone and base_norm > 0 and "weights" in limits:
        limits["weights"] = min(limits["weights"], factor * base_norm)
    return limits


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


def _floored(value: float, *, alone: bool) -> float:
    """The reference of a counter is at least one a step, since a device may count each step in any case."""
    return 1.0 if alone else max(1.0, value)
