"""Offences: the events that count against a device."""

from __future__ import annotations

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES
from fedpatch.coordinator.observability.metric_definitions import IGNORED
from fedpatch.shared.wire.reason_codes import RefuseReason


def test_every_reason_is_either_an_offence_or_not():
    reasons = {("refused", reason) for reason in RefuseReason} | {("ignored", reason) for reason in IGNORED}
    assert OFFENCES.keys() | NOT_OFFENCES.keys() == reasons
    assert OFFENCES.keys().isdisjoint(NOT_OFFENCES)
