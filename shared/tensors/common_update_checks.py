"""Checks of an update that each side makes alike: the device before its offer, the coordinator before it counts the update.

An update that fails one of them is an offence (coordinator.cohort.offences). A device therefore makes them with the bytes that
it is about to send, and gives up instead. `fedpatch check-task` makes them with some steps of training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields

from fedpatch.shared.errors import SchemaMismatch, UpdateRefused, WireError
from fedpatch.shared.tensors.arrays import (
    Array,
    Schema,
    Tensors,
    UnexpectedTensors,
    base_name,
    listing,
    require_finite,
)
from fedpatch.shared.tensors.moment_bounds import check_trained
from fedpatch.shared.tensors.packing import unpack
from fedpatch.shared.wire.codec import from_plain
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason


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
