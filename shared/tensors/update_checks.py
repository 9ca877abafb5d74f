"""Checks of an update that each side makes alike: the device before its offer, the coordinator before it counts the update.

An update that fails one of them is an offence (coordinator.cohort.offences). A device therefore makes them with the bytes that
it is about to send, and gives up instead. `fedpatch check-task` makes them with some steps of training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from fedpatch.shared.errors import SchemaMismatch, UpdateRefused, WireError
from fedpatch.shared.tensors.arrays import (
    Array,
    Schema,
    Tensors,
    UnexpectedTensors,
    base_name,
    listing,
    moment_name,
    require_finite,
)
from fedpatch.shared.tensors.packing import unpack
from fedpatch.shared.wire.codec import from_plain
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason

STEP = ":step"

# _SLACK allows for rounding: of each step and of the mean, and of second moments to a lower level when they travel
# (shared.tensors.encodings, eight levels an octave). _FLOOR allows for second moments that are rounded to zero.
_SLACK, _FLOOR = 1.1, 1e-16


@dataclass(frozen=True)
class ExpectedUpdate:
    """The request that an update answers.

    Attributes:
        schema: Names, shapes and dtypes of the tensors that travel.
        private_names: Names of the tensors that must not travel.
        base: Digest of the global model.
        model: Its tensors, which delta encodings need. None: checks against them are left out.
        plan: The training plan. None: moments and step counts are not checked.
    """

    schema: Schema
    private_names: Collection[str]
    base: str
    model: Mapping[str, Array] | None = None
    plan: TrainPlan | None = None


def read_update(
    blob: bytes, expected: ExpectedUpdate, *, encoding: str, raw_bytes: int
) -> tuple[UpdateReport, dict[str, Array]]:
    """Decode an update, and check everything that a device can check too.

    Args:
        blob: The packed update.
        expected: The request that it answers.
        encoding: The encoding that was requested.
        raw_bytes: The unpacked size that the manifest announced.

    Returns:
        The device's report, and the tensors by name.

    Raises:
        UpdateRefused: With a RefuseReason.
    """
    try:
        meta, tensors = unpack(
            blob, encoding=encoding, raw_bytes=raw_bytes, schema=expected.schema, base=expected.model
        )
        report = from_plain(meta, UpdateReport)
        # An allow-list here too: an unknown key could carry private data.
        if unknown := meta.keys() - {known.name for known in fields(UpdateReport)}:
            raise WireError(f"the report has unknown keys: {', '.join(sorted(unknown))[:200]}")
    except WireError as error:
        raise UpdateRefused(RefuseReason.DAMAGED, str(error)) from error
    except UnexpectedTensors as error:
        check_private(error.names, expected.private_names)
        raise UpdateRefused(RefuseReason.SCHEMA_MISMATCH, str(error)) from error
    except SchemaMismatch as error:
        raise UpdateRefused(RefuseReason.SCHEMA_MISMATCH, str(error)) from error
    if report.base != expected.base:
        detail = f"trained on the global model {report.base[:12]}, this round's is {expected.base[:12]}"
        raise UpdateRefused(RefuseReason.WRONG_BASE, detail)
    check_update(tensors, expected.schema, expected.private_names, report.num_examples, expected.model)
    if expected.plan is not None:
        check_trained(tensors, expected.schema, expected.plan, expected.model, report.num_examples)
    return report, tensors


def check_trained(
    tensors: Tensors, schema: Schema, plan: TrainPlan, model: Mapping[str, Array] | None, num_examples: int
) -> None:
    """Raise UpdateRefused for moments and step counts that training cannot produce.

    Args:
        tensors: The update.
        schema: Its names and roles.
        plan: Plan of the training.
        model: The global model; None leaves out the check of step counts.
        num_examples: Examples of the device.
    """
    check_moments(tensors, schema, plan)
    if model is not None:
        check_steps(tensors, model, schema, plan.steps_for(num_examples))


def check_update(
    tensors: Tensors,
    schema: Schema,
    private_names: Collection[str],
    num_examples: int,
    model: Tensors | None = None,
) -> None:
    """Raise an error unless an update may be aggregated.

    Private names are checked first, so that a device that sends private tensors gets that reason and no other.

    Args:
        tensors: The update.
        schema: Names, shapes and dtypes of the tensors that travel.
        private_names: Names of the tensors that must not travel.
        num_examples: Examples that the update reports.
        model: The global model. Where a value that is not trained is not finite in it, the update may have the same one.

    Raises:
        UpdateRefused: With a RefuseReason.
    """
    check_private(tensors, private_names)
    try:
        schema.check(tensors)
    except SchemaMismatch as error:
        raise UpdateRefused(RefuseReason.SCHEMA_MISMATCH, str(error)) from error
    require_finite(tensors, kept=untrained(model or {}, schema))
    for spec in schema.specs:
        if spec.never_negative and (tensors[spec.name] < 0).any():
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"{spec.name} has a negative value; it must be 0 or more")
    check_num_examples(num_examples)


def untrained(tensors: Tensors, schema: Schema) -> dict[str, Array]:
    """Return the tensors that no optimizer changes: statistics and buffers."""
    roles = ("stats", "buffer")
    return {spec.name: tensors[spec.name] for spec in schema.specs if spec.role in roles and spec.name in tensors}


def check_num_examples(num_examples: int) -> None:
    """Raise UpdateRefused("out_of_range") for no examples."""
    if num_examples < 1:
        raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"trained on {num_examples} examples; at least 1 is needed")


def check_private(names: Iterable[str], private_names: Collection[str]) -> None:
    """Raise UpdateRefused("private_value") for names of private tensors and of their moments."""
    private = [name for name in names if name in private_names or base_name(name) in private_names]
    if private:
        raise UpdateRefused(
            RefuseReason.PRIVATE_VALUE, f"{listing(private)} must stay on the device; it has another patch policy"
        )


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
