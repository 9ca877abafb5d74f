"""The time after which the memory of an idle training process is released."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.runtime.idle_release import IdleTimer


def test_with_zero_it_is_kept():
    idling = IdleTimer(0.0)
    idling.see(idle=True, now=0.0)
    assert idling.next_deadline() is None
    assert not idling.tick(1e9)


@given(
    release_s=st.floats(0.1, 1000.0),
    turns=st.lists(st.tuples(st.floats(0.0, 500.0), st.booleans()), max_size=30),
)
def test_memory_is_never_released_within_the_time_after_work(release_s, turns):
    """For any events: at a release, every look within the last `release_s` found the process idle."""
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
            assert not idling.tick(now + 2 * release_s)
            seen_at = None
        elif idle:
            assert seen_at is not None and now < seen_at + release_s
        assert idling.next_deadline() == (None if seen_at is None else seen_at + release_s)
