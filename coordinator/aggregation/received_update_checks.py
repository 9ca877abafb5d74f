"""The checks of a received update in their order, all before the coordinator sends `committed`.

First come those that a device makes before its offer too (shared.tensors.common_update_checks.read_update): the container and
the report, the names, the base, the values, the moments and their step counts. Then come the number of examples, the members,
the norm and the metric.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.aggregation.norm_limits import check_norm
from fedpatch.coordinator.aggregation.registered_counts import check_members, check_registered
from fedpatch.coordinator.aggregation.update_norms import norm
from fedpatch.shared.errors import UpdateRefused, WireError
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema
from fedpatch.shared.tensors.common_update_checks import ExpectedUpdate, read_update
from fedpatch.shared.wire.chunks import check_manifest
from fedpatch.shared.wire.messages import ENCODINGS, Manifest, TrainPlan, UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason


@dataclass(frozen=True)
class UpdateRequirements:
    """The requirements for an update of a round.

    Attributes:
        schema: Names, shapes and dtypes of the tensors that travel.
        private_names: Names of the tensors that must not travel.
        base: Digest of the round's global model.
        metric: The range of a user accuracy.
        model: The tensors of the global model, which delta encodings need. None: checks against them are left out.
        plan: The training plan of the round. None: moments and step counts are not checked.
        limits: The bounds of the run.
    """

    schema: Schema
    private_names: Collection[str]
    base: str
    metric: MetricTerms = field(default_factory=MetricTerms)
    model: Mapping[str, Array] | None = None
    plan: TrainPlan | None = None
    limits: Limits = field(default_factory=Limits)


def check_offer(manifest: Manifest, *, schema: str, encoding: str, max_bytes: int) -> None:
    """Check an offered update before its first chunk.

    Args:
        schema: Digest of the schema that was requested.
        encoding: The encoding that was requested.
        max_bytes: The greatest size of an update, packed and unpacked.

    Raises:
        UpdateRefused: With a RefuseReason.
    """
    try:
        check_manifest(manifest, max_bytes)
    except WireError as error:
        large = max(manifest.size_bytes, manifest.raw_bytes) > max_bytes
        raise UpdateRefused(RefuseReason.TOO_LARGE if large else RefuseReason.DAMAGED, str(error)) from error
    if manifest.schema == schema and {manifest.encoding, encoding} <= set(ENCODINGS) and manifest.encoding != encoding:
        # A device that was updated while its update waited is asked again, in an encoding that it has learned.
        detail = f"offered in {manifest.encoding}, and requested again in {encoding} since"
        raise UpdateRefused(RefuseReason.LATE, detail)
    if (manifest.schema, manifest.encoding) != (schema, encoding):
        offered = f"offered schema {manifest.schema[:12]} in {manifest.encoding}"
        raise UpdateRefused(RefuseReason.SCHEMA_MISMATCH, f"{offered}, requested {schema[:12]} in {encoding}")


def decode_and_validate_update(
    blob: bytes,
    terms: UpdateRequirements,
    *,
    encoding: str,
    raw_bytes: int,
    registered: int | None = None,
    members: int | None = None,
) -> tuple[UpdateReport, dict[str, Array]]:
    """Decode an update and check it against the requirements of its round.

    Args:
        blob: The packed update.
        encoding: The encoding that was requested.
        raw_bytes: The unpacked size that the manifest announced.
        registered: Examples that the device registered; None if that is unknown.
        members: Devices that it registered to speak for; None if that is unknown.

    Returns:
        The device's report, and the tensors by name.

    Raises:
        UpdateRefused: With a RefuseReason, for an update that must not be aggregated.
    """
    expected = ExpectedUpdate(terms.schema, terms.private_names, terms.base, terms.model, terms.plan)
    report, tensors = read_update(blob, expected, encoding=encoding, raw_bytes=raw_bytes)
    check_registered(report.num_examples, registered)
    _check_members(report, members, terms.limits.max_members)
    if terms.model is not None and terms.limits.norm.action == "reject":
        check_norm(norm(tensors, terms.model, terms.schema), terms.limits.norm)
    for measured in (report.user_accuracy_before, report.user_accuracy_after, report.user_accuracy_independent):
        if measured is not None and not terms.metric.allows(measured):
            detail = f"its {terms.metric.name} of {measured:g} is not {terms.metric.range_words}"
            raise UpdateRefused(RefuseReason.OTHER_METRIC, detail)
    return report, tensors


def _check_members(report: UpdateReport, registered: int | None, most: int) -> None:
    """Raise UpdateRefused("num_examples") for too many members, or for more members than examples.

    With a median number of examples below 1, the cap that is a multiple of it would leave no update any weight.
    """
    check_members(report.members, registered, most)
    if report.num_examples < report.members:
        detail = f"the mean of {report.members} devices, trained on {report.num_examples} examples"
        raise UpdateRefused(RefuseReason.NUM_EXAMPLES, detail)
