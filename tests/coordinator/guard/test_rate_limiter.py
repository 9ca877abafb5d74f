"""The rate limiter: it drops floods, and never an honest device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.guard.ingress_filter import MAX_WAITING_BYTES, IngressFilter
from fedpatch.coordinator.guard.rate_limiter import (
    BYTES_AT_ONCE,
    BYTES_PER_S,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_S,
    REPEATS,
    RateLimiter,
)
from fedpatch.shared.wire.messages import Envelope, Grant
from fedpatch.shared.wire.topics import ParsedTopic


def limiter(*devices: str, most: int = 100) -> RateLimiter:
    made = RateLimiter(most)
    for device in devices:
        made.know(device, 0.0)
    return made


@given(
    st.lists(st.tuples(st.floats(0, 10), st.sampled_from(["up", "device_state"]), st.integers(1, 70_000)), max_size=300)
)
def test_any_traffic_is_admitted_up_to_the_rate_only(events):
    door, now, let, let_bytes = limiter("a"), 0.0, 0, 0
    for pause_s, kind, size in events:
        now += pause_s
        if door.admit(kind, "a", size, now):
            let, let_bytes = let + 1, let_bytes + size
    assert let <= MESSAGES_AT_ONCE + MESSAGES_PER_S * now
    assert let_bytes <= BYTES_AT_ONCE + 64 * 1024 * now + 1
    assert let + sum(door.dropped.values()) == len(events)


def test_flood_is_dropped_and_counted_for_its_device():
    door = limiter("loud", "quiet")
    assert sum(door.admit("up", "loud", 100, 1.0) for _ in range(5000)) == MESSAGES_AT_ONCE
    assert door.admit("up", "quiet", 100, 1.0)
    assert door.take_dropped() == {("loud", "over_limit"): 5000 - MESSAGES_AT_ONCE}
    assert not door.take_dropped()


def test_working_device_is_never_dropped():
    door, fast = limiter("a"), limiter("b")
    assert all(door.admit("up", "a", 200, second / 10) for second in range(0, 864_000, 7))
    for number in range(3000):
        fast.asked("b", "run", number, number / 10)
        assert all(fast.admit("up", "b", 500, number / 10) for _ in range(12))
    assert not door.dropped
    assert not fast.dropped


@given(st.integers(1, 10**9))
def test_chunks_are_admitted_as_granted(size):
    door = limiter("a")
    assert not door.admit("update_chunk", "a", size, 0.0)
    for number in (1, 2):
        door.asked("a", "run", number, 0.0)
        assert not door.admit("update_chunk", "a", size, 0.0)
        let = 0
        for _ in range(REPEATS + 3):
            door.granted("a", size)
            let += door.admit("update_chunk", "a", size, 0.0)
        assert let == REPEATS


def test_interrupted_uploads_are_admitted_at_the_rate():
    door, size = limiter("a"), 600_000
    door.asked("a", "run", 1, 0.0)
    door.granted("a", size)
    pause_s = size / BYTES_PER_S
    assert all(door.admit("update_chunk", "a", size, number * pause_s) for number in range(10 * REPEATS))
    assert not door.dropped
    door.asked("a", "run", 2, 10_000.0)
    assert not door.admit("update_chunk", "a", size, 20_000.0)


def test_repeated_request_keeps_the_grant():
    door = limiter("a")
    door.asked("a", "run", 1, 0.0)
    door.granted("a", 100)
    door.asked("a", "run", 1, 5.0)
    assert door.admit("update_chunk", "a", 100, 5.0)


def test_unknown_names_share_one_account():
    door = limiter("honest", most=10)
    let = sum(door.admit("device_state", f"ghost-{number}", 100, 1.0) for number in range(100_000))
    assert let < 3 * MESSAGES_AT_ONCE
    assert len(door._accounts) == 1
    assert set(door.dropped) == {("", "over_limit")}
    assert door.admit("device_state", "honest", 100, 1.0)
    for number in range(100):
        door.know(f"ghost-{number}", 1.0)
    assert len(door._accounts) == 10
    door.asked("ghost-99", "run", 1, 1.0)
    door.granted("ghost-99", 100)
    assert not door.admit("update_chunk", "ghost-99", 100, 1.0)
    door.forget("ghost-0")
    assert len(door._accounts) == 9


def test_presence_of_a_whole_new_fleet_is_admitted():
    door = RateLimiter(10_000)
    assert all(door.admit("device_state", f"pi-{number % 10_000}", 400, 1.0) for number in range(20_000))


def test_waiting_bytes_are_bounded():
    door = IngressFilter(10)
    door.expect(MAX_WAITING_BYTES, 2**20)
    door.knows("a")
    door.sends("a", Envelope(Grant("0" * 64, 8, b"")))
    size, topic = MAX_WAITING_BYTES // 4, ParsedTopic("update_chunk", "a")
    assert [door.admit(topic, size) for _ in range(5)] == [True] * 4 + [False]
    door.took(size)
    assert door.admit(topic, size)
    assert door.take_dropped() == {("", "over_limit"): 1}
    door.took(size)
    door.forgets("a")
    assert not door.admit(topic, 1)
    assert door.take_dropped() == {("", "not_granted"): 1}
