"""Offences: the errors of a device that count against it.

An honest device of this version never commits an offence, with any owner, data, disk or network. An event that can
happen to an honest device (it is late, it diverged, its link broke) never counts, however often it happens.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.shared.wire.reason_codes import RefuseReason

OFFENCES: Mapping[tuple[str, str], str] = {
    ("refused", RefuseReason.PRIVATE_VALUE): "values of private tensors in an update",
    ("refused", RefuseReason.TOO_LARGE): "an update larger than its tensors can be",
    ("refused", RefuseReason.DAMAGED): "bytes other than announced",
    ("refused", RefuseReason.SCHEMA_MISMATCH): "other names, shapes or dtypes than the schema",
    ("refused", RefuseReason.NOT_FINITE): "NaN or infinity; an honest device gives up instead",
    ("refused", RefuseReason.OUT_OF_RANGE): "values impossible in training, or no examples",
    ("refused", RefuseReason.WRONG_BASE): "another global model as the base",
    ("ignored", "not_ours"): "bytes on its topics that are neither message nor chunk",
}
"""The meaning of each offence, by the kind of event that is counted and its reason."""

NOT_OFFENCES: Mapping[tuple[str, str], str] = {
    ("refused", RefuseReason.NORM_BOUND): "the device cannot know the operator's bound",
    ("refused", RefuseReason.NUM_EXAMPLES): "many more examples than registered: its newer number may be lost",
    ("refused", RefuseReason.LATE): "a slow device, or a round that went on",
    ("refused", RefuseReason.STALE_EPOCH): "the coordinator restarted",
    ("refused", RefuseReason.NOT_INVITED): "its request was lost on the coordinator's side",
    ("refused", RefuseReason.ALREADY_COMMITTED): "the coordinator's answer was lost",
    ("refused", RefuseReason.QUARANTINED): "the device may not know yet",
    ("refused", RefuseReason.STALE): "a slow device, whose base is gone",
    ("refused", RefuseReason.SUPERSEDED): "the device was asked again, and its older work came",
    (
        "refused",
        RefuseReason.OTHER_METRIC,
    ): "a metric out of its range: the device may have another version of the task",
    ("ignored", "unknown_message"): "a newer version",
    ("ignored", "revoked"): "revocation already excludes the device",
    ("ignored", "damaged_chunk"): "a chunk that its link has damaged; the device sends it again",
    ("ignored", "over_limit"): "excess messages are dropped without harm",
    ("ignored", "not_granted"): "unrequested chunks, dropped",
    ("ignored", "fleet_full"): "no room for the device",
    ("ignored", "other_context"): "a masked group of another request, which may have changed on its way to the device",
}
"""Events that are counted and are no offence, each with the reason."""
