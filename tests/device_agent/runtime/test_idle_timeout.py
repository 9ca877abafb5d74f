"""When the memory of training is given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.runtime.housekeeping import IdleTimer


def test_it_is_given_back_once_after_a_while_without_work():
    """The while is counted from when it was first seen idle, and after the release there is nothing to count."""
    idling = IdleTimer(100.0)
    for now in (5.0, 50.0, 104.9):
        idling.see(idle=True, now=now)
        assert not idling.tick(now)
    assert idling.next_deadline() == 105.0
    assert idling.tick(105.0)
    assert idling.next_deadline() is None
    assert not idling.tick(1000.0)


def test_work_begins_the_count_anew():
    """Only an unbroken rest counts."""
    idling = IdleTimer(100.0)
    idling.see(idle=True, now=0.0)
    idling.see(idle=False, now=99.0)
    assert idling.next_deadline() is None
    idling.see(idle=True, now=120.0)
    assert not idling.tick(219.0)
    assert idling.tick(220.0)


def test_with_zero_it_is_kept():
    """Until the coordinator announces a rest."""
    idling = IdleTimer(0.0)
    idling.see(idle=True, now=0.0)
    assert idling.next_deadline() is None
    assert not idling.tick(1e9)


@given(
    release_s=st.floats(0.1, 1000.0),
    turns=st.lists(st.tuples(st.floats(0.0, 500.0), st.booleans()), max_size=30),
)
def test_whoever_worked_within_the_while_is_never_released(release_s, turns):
    """For any course of events: a release means that every look within the last `release_s` found it idle."""
    idling, now, busy_at, seen_at = IdleTimer(release_s), 0.0, -1.0, None
    for wait_s, idle in turns:
        now += wait_s
        idling.see(idle=idle, now=now)
        if not idle:
            busy_at, seen_at = now, None
        elif seen_at is None:
            seen_at = now
        if idling.tick(now):
            assert idle and seen_at is not None and now >= seen_at + release_s > busy_at
            seen_at = None
        elif idle:
            assert seen_at is not None and now < seen_at + release_s
