"""What counts against a device, and what is mere misfortune; how many offences put it into quarantine.

An offence is what a device of this version never does, whatever its owner, its data, its disk or its network do to it. What
can happen to an honest one (it is late, it diverged, its link broke) never counts, however often it happens.
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
"""By what is counted and its reason, with what it means."""

NOT_OFFENCES: Mapping[tuple[str, str], str] = {
    ("refused", RefuseReason.NORM_BOUND): "the device cannot know the operator's bound",
    ("refused", RefuseReason.NUM_EXAMPLES): "many more examples than registered: its newer number may be lost",
    ("refused", RefuseReason.LATE): "a slow device, or a round that went on",
    ("refused", RefuseReason.STALE_EPOCH): "the coordinator restarted",
    ("refused", RefuseReason.NOT_INVITED): "its request was lost on the coordinator's side",
    ("refused", RefuseReason.ALREADY_COMMITTED): "the coordinator's answer was lost",
    ("refused", RefuseReason.QUARANTINED): "the device may not know yet",
    ("ignored", "unknown_message"): "a newer version",
    ("ignored", "revoked"): "revocation already excludes the device",
    ("ignored", "over_limit"): "excess messages are dropped without harm",
    ("ignored", "not_granted"): "unrequested chunks, dropped",
    ("ignored", "fleet_full"): "no room for the device",
}
"""What is counted too, and never counts against a device."""


def is_offence(what: str, reason: str) -> bool:
    """Whether an event that was counted (`what`) for this reason is an offence."""
    return (what, reason) in OFFENCES


class OffenceCounter:
    """Offences by device since it was last released; at `limit` of them it is to be put into quarantine (0: never)."""

    def __init__(self, limit: int, known: Mapping[str, int]) -> None:
        self._limit = limit
        self._offences = dict(known)

    def note(self, device: str, what: str, reason: str, times: int = 1) -> bool:
        """Note an event that was counted; returns whether it is an offence."""
        if not is_offence(what, reason):
            return False
        self._offences[device] = self._offences.get(device, 0) + times
        return True

    def due(self, device: str) -> bool:
        """Whether the device has reached the limit."""
        return 0 < self._limit <= self._offences.get(device, 0)

    def forget(self, device: str) -> None:
        """It has none any more."""
        self._offences.pop(device, None)

    def of(self, device: str) -> int:
        """Its offences."""
        return self._offences.get(device, 0)
