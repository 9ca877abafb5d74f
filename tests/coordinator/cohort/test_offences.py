"""Offences: the events that count against a device, and the limit for quarantine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES, OFFENCES, OffenceCounter, is_offence

OFFENCE, NO_OFFENCE = next(iter(OFFENCES)), next(iter(NOT_OFFENCES))


def test_no_event_is_both_an_offence_and_none():
    assert OFFENCES.keys().isdisjoint(NOT_OFFENCES)
    assert all(is_offence(*event) for event in OFFENCES)
    assert not any(is_offence(*event) for event in NOT_OFFENCES)


def test_offence_is_counted_for_its_device_only():
    counter = OffenceCounter(0, {})
    assert counter.note("a", *OFFENCE)
    assert counter.note("a", *OFFENCE, times=3)
    assert (counter.of("a"), counter.of("b")) == (4, 0)


def test_event_that_is_no_offence_is_not_counted():
    counter = OffenceCounter(1, {})
    assert not counter.note("a", *NO_OFFENCE)
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
