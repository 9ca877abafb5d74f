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


def test_offence_is_counted_for_its_device_only():
    counter = OffenceCounter(0, {})
    assert counter.note("a", *OFFENCE)
    assert counter.note("a", *OFFENCE, times=3)
    assert (counter.of("a"), counter.of("b")) == (4, 0)


@pytest.mark.parametrize("event", [NO_OFFENCE, ("declined", "unwilling")])
def test_event_that_is_no_offence_is_not_counted(event):
    counter = OffenceCounter(1, {})
    assert not counter.note("a", *event)
    assert (counter.of("a"), counter.due("a")) == (0, False)


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


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([OFFENCE, NO_OFFENCE]))))
def test_count_equals_the_number_of_offences(events):
    counter = OffenceCounter(3, {})
    for device, event in events:
        counter.note(device, *event)
    for device in "ab":
        assert counter.of(device) == events.count((device, OFFENCE))
