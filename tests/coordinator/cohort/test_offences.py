"""Offences: the events that count against a device, and the limit for quarantine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES, OffenceCounter, is_offence
from fedpatch.coordinator.observability.metric_definitions import IGNORED
from fedpatch.shared.wire.reason_codes import RefuseReason

OFFENCE, NO_OFFENCE = next(iter(OFFENCES)), next(iter(NOT_OFFENCES))


def test_every_reason_is_either_an_offence_or_not():
    reasons = {("refused", reason) for reason in RefuseReason} | {("ignored", reason) for reason in IGNORED}
    assert OFFENCES.keys() | NOT_OFFENCES.keys() == reasons
    assert OFFENCES.keys().isdisjoint(NOT_OFFENCES)
    assert all(is_offence(*event) for event in OFFENCES)
    assert not any(is_offence(*event) for event in NOT_OFFENCES)


@pytest.mark.parametrize(
    ("limit", "offences", "due"),
    [(1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True), (2, 3, True), (0, 10**6, False)],
)
def test_device_is_due_at_the_limit_and_never_with_limit_zero(limit, offences, due):
    assert OffenceCounter(limit, {"a": offences}).due("a") is due
    assert not OffenceCounter(limit, {"a": offences}).due("b")


def test_forgotten_device_has_no_offences():
    counter = OffenceCounter(1, {"a": 1, "b": 1})
    counter.forget("a")
    counter.forget("unknown")
    assert (counter.of("a"), counter.of("b")) == (0, 1)


EVENTS = st.sampled_from([OFFENCE, NO_OFFENCE, ("declined", "unwilling")])


@given(st.lists(st.tuples(st.sampled_from("ab"), EVENTS, st.integers(1, 3))))
def test_count_equals_the_number_of_offences_of_the_device(events):
    counter = OffenceCounter(0, {})
    for device, (kind, reason), times in events:
        assert counter.note(device, kind, reason, times=times) == ((kind, reason) == OFFENCE)
    for device in "ab":
        assert counter.of(device) == sum(times for name, event, times in events if (name, event) == (device, OFFENCE))
