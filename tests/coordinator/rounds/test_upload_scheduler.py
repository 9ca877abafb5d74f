"""The upload scheduler: slots, windows, and the queue of waiting devices."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.upload_scheduler import MAX_RETRY_S, STALL_S, Complete, UploadScheduler
from fedpatch.shared.wire.chunks import Bitmap, Chunk, cut, describe
from fedpatch.shared.wire.messages import Ack, Grant, Manifest, RetryAfter

CHUNK_BYTES = 10


def blob_of(device: str, size: int = 95) -> bytes:
    """Return a different update for each device."""
    return random.Random(device).randbytes(size)


def manifest_of(device: str, size: int = 95) -> Manifest:
    blob = blob_of(device, size)
    return describe(blob, chunk_bytes=CHUNK_BYTES, encoding="fp32", raw_bytes=size, schema="5c" * 32)


def chunk_of(device: str, index: int) -> Chunk:
    return cut(blob_of(device), manifest_of(device), index)


def desk(devices: str = "", slots: int = 1, window: int = 8, idle_s: float = 30.0) -> UploadScheduler:
    """Return a scheduler with repeatable jitter and offers of these devices."""
    made = UploadScheduler(slots=slots, window=window, idle_s=idle_s, jitter=random.Random(1))
    for device in devices:
        made.offer(device, manifest_of(device), 0.0)
    return made


def granted_devices(counter: UploadScheduler, now: float) -> list[str]:
    return [device for device, _ in counter.next_grants(now)]


def granted(have: tuple[int, ...] = (), device: str = "a") -> Grant:
    """Return the grant for a device whose chunks `have` have arrived."""
    return Grant(manifest_of(device).digest, 8, Bitmap(10, have).to_bytes())


class TestUpload:
    def test_chunks_in_any_order_make_the_blob(self):
        counter = desk()
        assert counter.offer("a", manifest_of("a"), 0.0) == granted()
        order = [9, 3, 3, 1, 0, 2, 4, 8, 7, 7, 6]
        assert not any(isinstance(counter.chunk("a", chunk_of("a", i), 1.0), Complete) for i in order)
        assert counter.chunk("a", chunk_of("a", 5), 1.0) == Complete(manifest_of("a"), blob_of("a"), intact=True)
        assert counter.chunk("a", chunk_of("a", 5), 1.0) is None

    def test_half_of_a_window_and_duplicates_are_acknowledged(self):
        counter = desk("a", window=4)
        assert counter.chunk("a", chunk_of("a", 0), 1.0) is None
        both = Ack(manifest_of("a").digest, Bitmap(10, (0, 1)).to_bytes())
        assert counter.chunk("a", chunk_of("a", 1), 1.0) == both
        assert counter.chunk("a", chunk_of("a", 1), 1.0) == both

    def test_small_window_is_acknowledged_each_time(self):
        counter = desk("a", window=1)
        assert isinstance(counter.chunk("a", chunk_of("a", 0), 1.0), Ack)

    def test_repeated_offer_is_granted_with_the_chunks_that_are_here(self):
        counter = desk("a")
        counter.chunk("a", chunk_of("a", 4), 1.0)
        assert counter.offer("a", manifest_of("a"), 2.0) == granted((4,))

    def test_other_offer_replaces_the_one_before(self):
        counter = desk("a")
        counter.chunk("a", chunk_of("a", 4), 1.0)
        other = manifest_of("a", 55)
        assert counter.offer("a", other, 2.0) == Grant(other.digest, 8, bytes(1))
        assert counter.chunk("a", chunk_of("a", 4), 1.0) is None

    def test_blob_with_another_digest_is_not_intact(self):
        counter = desk()
        false = Chunk(manifest_of("a").digest, 9, 10, b"wrong")
        counter.offer("a", manifest_of("a"), 0.0)
        for index in range(9):
            counter.chunk("a", chunk_of("a", index), 1.0)
        done = counter.chunk("a", false, 1.0)
        assert isinstance(done, Complete)
        assert not done.intact

    def test_chunks_without_an_offer_are_ignored(self):
        counter = desk()
        assert counter.chunk("a", chunk_of("a", 0), 0.0) is None
        counter.offer("a", manifest_of("a"), 0.0)
        assert counter.chunk("a", chunk_of("b", 0), 0.0) is None

    def test_suspended_upload_is_kept_while_nobody_waits(self):
        counter = desk("a")
        counter.chunk("a", chunk_of("a", 4), 1.0)
        counter.suspend("a")
        assert counter.next_grants(2.0) == []
        assert counter.offer("a", manifest_of("a"), 3.0) == granted((4,))

    def test_suspended_upload_makes_room_for_another(self):
        counter = desk("a")
        counter.suspend("a")
        assert counter.offer("b", manifest_of("b"), 1.0) == granted(device="b")


class TestShares:
    def test_short_updates_let_more_devices_in(self):
        counter = desk(slots=2, window=8)
        answers = [counter.offer(f"pi-{i}", manifest_of("a", 25), 0.0) for i in range(7)]
        assert [type(answer) for answer in answers] == [Grant] * 5 + [RetryAfter] * 2
        counter.release("pi-0")
        assert granted_devices(counter, 1.0) == ["pi-5"]

    def test_short_update_does_not_overtake_a_long_one(self):
        counter = desk(slots=1, window=8)
        counter.offer("short", manifest_of("a", 25), 0.0)
        assert isinstance(counter.offer("long", manifest_of("b"), 0.0), RetryAfter)
        assert isinstance(counter.offer("later", manifest_of("c", 5), 0.0), RetryAfter)
        counter.release("short")
        assert granted_devices(counter, 1.0) == ["long"]

    def test_enormous_chunk_takes_shares_by_its_size(self):
        counter = desk(slots=1, window=8)
        size = 8 * 2**20
        enormous = Manifest("aa" * 32, size, size, 1, "fp32", size, "5c" * 32)
        assert isinstance(counter.offer("a", enormous, 0.0), Grant)
        assert isinstance(counter.offer("b", manifest_of("b", 5), 0.0), RetryAfter)

    @given(
        st.integers(1, 4),
        st.integers(1, 9),
        st.lists(
            st.tuples(st.sampled_from(("offer", "release", "suspend", "late", "grants", "chunk")), st.integers(0, 9))
        ),
    )
    def test_any_history_the_shares_taken_are_those_of_the_active_uploads(self, slots, window, story):
        counter, now = desk(slots=slots, window=window), 0.0
        for what, number in story:
            device, size = f"pi-{number}", 10 * number + 5
            match what:
                case "offer":
                    counter.offer(device, manifest_of(device, size), now)
                case "release":
                    counter.release(device)
                case "suspend":
                    counter.suspend(device)
                case "chunk":
                    counter.chunk(device, cut(blob_of(device, size), manifest_of(device, size), 0), now)
                case "late":
                    now += 20.0
                case "grants":
                    counter.next_grants(now)
            inside = {d: min(window, slot.manifest.chunk_count) for d, slot in counter._active.items()}
            assert counter._taken == sum(inside.values()) <= slots * window
            assert inside.keys().isdisjoint(counter._waiting)


class TestLine:
    def test_retry_time_grows_with_the_line(self):
        counter = desk(slots=2)
        for device in "ab":
            assert isinstance(counter.offer(device, manifest_of(device), 0.0), Grant)
        delays = []
        for device in "cdef":
            answer = counter.offer(device, manifest_of(device), 0.0)
            assert isinstance(answer, RetryAfter)
            delays.append(answer.delay_s)
        assert counter.waiting == 4
        assert 1.0 < min(delays) < max(delays) < 1.0 + 1.5 * 4 / 2

    def test_retry_time_is_bounded_and_spread(self):
        counter = desk()
        delays = []
        for number in range(5000):
            answer = counter.offer(f"pi-{number}", manifest_of("a"), 0.0)
            if isinstance(answer, RetryAfter):
                delays.append(answer.delay_s - 1.0)
        late = sorted(delays[200:])
        assert 0.5 * MAX_RETRY_S <= late[0] < late[-1] <= 1.5 * MAX_RETRY_S
        gaps = [later - earlier for earlier, later in pairwise(late)]
        assert max(gaps) < 1.0  # 4,800 draws over 60 s

    def test_unanswered_grant_is_repeated_after_the_others(self):
        counter = desk("abc", idle_s=30.0)
        assert granted_devices(counter, 30.0) == ["b"]
        counter.suspend("b")
        assert granted_devices(counter, 30.0) == ["c"]
        counter.release("c")
        assert counter.next_grants(31.0) == [("a", granted(device="a"))]
        assert counter.waiting == 0

    def test_free_slot_is_granted_to_the_longest_waiting(self):
        counter = desk("abc")
        assert counter.next_grants(1.0) == []
        counter.release("a")
        assert counter.next_grants(1.0) == [("b", granted(device="b"))]
        counter.release("b")
        assert counter.next_grants(1.0) == [("c", granted(device="c"))]

    def test_repeated_offer_keeps_its_place_in_the_line(self):
        counter = desk("abcb")
        assert counter.waiting == 2
        counter.release("a")
        assert granted_devices(counter, 1.0) == ["b"]

    def test_new_offer_does_not_overtake_the_line(self):
        counter = desk("abc")
        counter.release("a")
        assert isinstance(counter.offer("c", manifest_of("c"), 1.0), RetryAfter)
        assert isinstance(counter.offer("b", manifest_of("b"), 1.0), Grant)

    def test_silent_device_loses_its_slot_if_another_waits(self):
        counter = desk("a", idle_s=30.0)
        assert counter.next_deadline() is None
        assert counter.next_grants(1000.0) == []
        counter.chunk("a", chunk_of("a", 0), 1000.0)
        counter.offer("b", manifest_of("b"), 1010.0)
        assert counter.next_deadline() == 1030.0
        assert counter.next_grants(1029.9) == []
        assert granted_devices(counter, 1030.0) == ["b"]
        assert counter.chunk("a", chunk_of("a", 1), 1031.0) is None

    def test_released_and_suspended_devices_are_not_granted(self):
        counter = desk("abcd")
        counter.suspend("b")
        for device in "abc":
            counter.release(device)
        assert granted_devices(counter, 1.0) == ["d"]

    def test_clear_leaves_nothing(self):
        counter = desk("ab")
        counter.clear()
        assert (counter.waiting, counter.next_deadline(), counter.next_grants(1.0)) == (0, None, [])


def test_device_that_sends_nothing_new_loses_its_place():
    counter = desk("a")
    counter.chunk("a", chunk_of("a", 0), 1.0)
    now = 1.0
    while now < STALL_S:
        now += 5.0
        counter.chunk("a", chunk_of("a", 0), now)
        counter.offer("a", manifest_of("a"), now)
    assert isinstance(counter.offer("b", manifest_of("b"), now), Grant)
    assert isinstance(counter.offer("a", manifest_of("a"), now), RetryAfter)
