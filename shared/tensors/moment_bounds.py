"""The bounds of the moments in an update: the first by the second ones, and step counts by the steps of the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, base_name, moment_name
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.reason_codes import RefuseReason

STEP = ":step"

# _SLACK allows for rounding: of each step and of the mean, and of second moments to a lower level when they travel
# (shared.tensors.levels, eight levels an octave). _FLOOR allows for second moments that are rounded to zero.
_SLACK, _FLOOR = 1.1, 1e-16


def check_trained(
    tensors: Tensors, schema: Schema, plan: TrainPlan, model: Mapping[str, Array] | None, num_examples: int
) -> None:
    """Raise UpdateRefused for moments and step counts that training cannot produce.

    Args:
        tensors: The update.
        schema: Its names and roles.
        model: The global model; None leaves out the check of step counts.
    """
    check_moments(tensors, schema, plan)
    if model is not None:
        check_steps(tensors, model, schema, plan.steps_for(num_examples))


def check_moments(tensors: Tensors, schema: Schema, plan: TrainPlan) -> None:
    """Raise an error for moments that no gradients can produce.

    With m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2 from zero, and with every mean of such pairs, Cauchy and
    Schwarz give m^2 <= c v, c = (1 - b1)^2 / ((1 - b2) (1 - b1^2 / b2)). So no device can send first moments that make the
    next steps of other devices long. The moments themselves have no bound: gradients follow the units of the data, and a
    pressure in Pa gives second moments above 1e17.

    Args:
        tensors: The update.
        schema: Its names, shapes and dtypes.
        plan: The training plan, with b1 and b2.

    Raises:
        UpdateRefused: "out_of_range", with the name of the moment.
    """
    bound = _first_by_second(plan)
    for spec in schema.specs:
        if bound is None or spec.role != "moment" or not spec.name.endswith(":exp_avg_sq"):
            continue
        first_name = moment_name(base_name(spec.name), "exp_avg")
        if first_name not in schema:
            continue
        first = np.abs(tensors[first_name].astype(np.float64))
        if (first > _SLACK * bound * np.sqrt(_unrounded(tensors[spec.name], plan.beta_2)) + _FLOOR).any():
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"{first_name} is greater than {spec.name} allows")


def check_steps(tensors: Tensors, base: Tensors, schema: Schema, steps: int) -> None:
    """Raise an error for a step count of a moment that the plan's steps cannot produce.

    Args:
        tensors: The update.
        base: The global model of the round.
        schema: Names, shapes and dtypes of both.
        steps: The plan's steps for the examples that the update reports.

    Raises:
        UpdateRefused: "out_of_range", with the name of the counter.
    """
    for spec in schema.specs:
        if spec.role != "moment" or not spec.name.endswith(STEP):
            continue
        grown = float(tensors[spec.name]) - float(base[spec.name])
        if not 0 <= grown <= step_limit(base[spec.name], steps):
            detail = f"{spec.name} changes by {grown:.6g}, and the plan has {steps} steps for its examples"
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, detail)


def step_limit(base: Array, steps: int) -> float:
    """The greatest sum of `steps` increments of one, each rounded in float32: beyond 2^24 an increment of one becomes two."""
    return steps * (1.0 + float(np.spacing(np.float32(float(base) + steps))))


def _first_by_second(plan: TrainPlan) -> float | None:
    if plan.beta_1**2 >= plan.beta_2:
        return None  # the series has no sum, and so there is no bound
    return (1 - plan.beta_1) / math.sqrt((1 - plan.beta_2) * (1 - plan.beta_1**2 / plan.beta_2))


def _unrounded(second: Array, beta_2: float) -> Array:
    """Return the greatest second moments, in float64, that rounding to the dtype of `second` may have made so small.

    A step adds (1 - b2) (g^2 - v). An addition below half of the spacing at v is lost, at each step anew. In float16 with
    b2 = 0.999 a gradient of 0.005 leaves a second moment of zero.
    """
    lost, info = 0.5 / (1.0 - beta_2), np.finfo(second.dtype)
    wide = second.astype(np.float64)
    return np.asarray(wide * (1.0 + float(info.eps) * lost) + float(info.smallest_subnormal) * lost)
