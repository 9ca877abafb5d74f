"""The upload desk: few at a time, a window each, and everybody in turn."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.upload_scheduler import MAX_RETRY_S, STALL_S, Complete, UploadScheduler
from fedpatch.shared.wire.chunked_transfer import Bitmap, Chunk, cut, describe
from fedpatch.shared.wire.messages import Ack, Grant, Manifest, RetryAfter

CHUNK_BYTES = 10


def blob_of(device: str, size: int = 95) -> bytes:
    """An update of its own for each device."""
    return random.Random(device).randbytes(size)


def manifest_of(device: str, size: int = 95) -> Manifest:
    """What announces it."""
    blob = blob_of(device, size)
    return describe(blob, chunk_bytes=CHUNK_BYTES, encoding="fp32", raw_bytes=size, schema="5c" * 32)


def chunk_of(device: str, index: int) -> Chunk:
    """A part of it."""
    return cut(blob_of(device), manifest_of(device), index)


def desk(slots: int = 1, window: int = 8, idle_s: float = 30.0) -> UploadScheduler:
    """A desk with repeatable jitter."""
    return UploadScheduler(slots=slots, window=window, idle_s=idle_s, jitter=random.Random(1))


def granted(have: tuple[int, ...] = (), device: str = "a") -> Grant:
    """What a device is told that may upload."""
    return Grant(manifest_of(device).digest, 8, Bitmap(10, have).to_bytes())


class TestUpload:
    def test_of_one_device_is_put_together(self):
        """Chunks in any order, some twice, make the announced blob."""
        counter = desk()
        assert counter.offer("a", manifest_of("a"), 0.0) == granted()
        order = [9, 3, 3, 1, 0, 2, 4, 8, 7, 7, 6]
        assert not any(isinstance(counter.chunk("a", chunk_of("a", i), 1.0), Complete) for i in order)
        assert counter.chunk("a", chunk_of("a", 5), 1.0) == Complete(manifest_of("a"), blob_of("a"), intact=True)
        assert counter.chunk("a", chunk_of("a", 5), 1.0) is None

    def test_is_acknowledged_each_quarter_of_a_window(self):
        """Not every chunk has an answer, but a duplicate does: its sender has missed one."""
        counter = desk(window=8)
        counter.offer("a", manifest_of("a"), 0.0)
        assert counter.chunk("a", chunk_of("a", 0), 1.0) is None
        both = Ack(manifest_of("a").digest, Bitmap(10, (0, 1)).to_bytes())
        assert counter.chunk("a", chunk_of("a", 1), 1.0) == both
        assert counter.chunk("a", chunk_of("a", 1), 1.0) == both

    def test_with_a_small_window_is_acknowledged_each_time(self):
        """A window below four leaves no room for waiting."""
        counter = desk(window=1)
        counter.offer("a", manifest_of("a"), 0.0)
        assert isinstance(counter.chunk("a", chunk_of("a", 0), 1.0), Ack)

    def test_goes_on_where_it_was(self):
        """The same offer again is answered with what is here."""
        counter = desk()
        counter.offer("a", manifest_of("a"), 0.0)
        counter.chunk("a", chunk_of("a", 4), 1.0)
        assert counter.offer("a", manifest_of("a"), 2.0) == granted((4,))

    def test_of_something_else_begins_anew(self):
        """Another offer of the same device replaces the one before."""
        counter = desk()
        counter.offer("a", manifest_of("a"), 0.0)
        counter.chunk("a", chunk_of("a", 4), 1.0)
        other = manifest_of("a", 55)
        assert counter.offer("a", other, 2.0) == Grant(other.digest, 8, bytes(1))
        assert counter.chunk("a", chunk_of("a", 4), 1.0) is None

    def test_that_is_not_what_was_announced_shows(self):
        """A blob whose digest is another one is complete, but not intact."""
        counter = desk()
        false = Chunk(manifest_of("a").digest, 9, 10, b"wrong")
        counter.offer("a", manifest_of("a"), 0.0)
        for index in range(9):
            counter.chunk("a", chunk_of("a", index), 1.0)
        done = counter.chunk("a", false, 1.0)
        assert isinstance(done, Complete)
        assert not done.intact

    def test_without_an_offer_is_nothing(self):
        """Chunks of strangers, and chunks that do not fit, are passed over."""
        counter = desk()
        assert counter.chunk("a", chunk_of("a", 0), 0.0) is None
        counter.offer("a", manifest_of("a"), 0.0)
        assert counter.chunk("a", chunk_of("b", 0), 0.0) is None

    def test_of_a_device_that_went_away_is_kept_while_nobody_else_needs_the_place(self):
        """A broken connection costs no chunk that has arrived."""
        counter = desk()
        counter.offer("a", manifest_of("a"), 0.0)
        counter.chunk("a", chunk_of("a", 4), 1.0)
        counter.suspend("a")
        assert counter.next_grants(2.0) == []
        assert counter.offer("a", manifest_of("a"), 3.0) == granted((4,))

    def test_of_a_device_that_went_away_makes_room(self):
        """Whoever comes next gets the place at once."""
        counter = desk()
        counter.offer("a", manifest_of("a"), 0.0)
        counter.suspend("a")
        assert counter.offer("b", manifest_of("b"), 1.0) == granted(device="b")


class TestShares:
    def test_let_more_devices_in_where_updates_are_short(self):
        """Two slots of eight chunks hold five updates of three, and never more chunks than that."""
        counter = desk(slots=2, window=8)
        answers = [counter.offer(f"pi-{i}", manifest_of("a", 25), 0.0) for i in range(7)]
        assert [type(answer) for answer in answers] == [Grant] * 5 + [RetryAfter] * 2
        counter.release("pi-0")
        assert [device for device, _ in counter.next_grants(1.0)] == ["pi-5"]

    def test_are_given_in_turn(self):
        """A short update does not overtake a long one that waits for a whole window."""
        counter = desk(slots=1, window=8)
        counter.offer("short", manifest_of("a", 25), 0.0)
        assert isinstance(counter.offer("long", manifest_of("b"), 0.0), RetryAfter)
        assert isinstance(counter.offer("later", manifest_of("c", 5), 0.0), RetryAfter)
        counter.release("short")
        assert [device for device, _ in counter.next_grants(1.0)] == ["long"]

    def test_of_an_update_in_one_enormous_chunk_are_those_of_its_size(self):
        """Nobody is asked for such chunks; memory stays bounded if somebody sends them."""
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
    def test_never_come_to_more_than_there_are(self, slots, window, story):
        """Whatever happens, nobody has a place twice, and what is taken is what those inside may send."""
        counter, now = desk(slots, window), 0.0
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
    def test_forms_when_all_slots_are_taken(self):
        """One more device than slots has to wait, longer the longer the line."""
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

    def test_sends_nobody_away_for_long(self):
        """However long it is, and spread out: a device whose grant is lost must come back by itself."""
        counter = desk()
        delays = []
        for number in range(5000):
            answer = counter.offer(f"pi-{number}", manifest_of("a"), 0.0)
            if isinstance(answer, RetryAfter):
                delays.append(answer.delay_s - 1.0)
        late = sorted(delays[200:])
        assert 0.5 * MAX_RETRY_S <= late[0] < late[-1] <= 1.5 * MAX_RETRY_S
        gaps = [later - earlier for earlier, later in pairwise(late)]
        assert max(gaps) < 1.0  # of 4,800 draws over 60 s

    def test_calls_again_who_did_not_answer(self):
        """Perhaps only the grant was lost: the device has another turn, after those who wait; one that is gone has none."""
        counter = desk(idle_s=30.0)
        for device in "abc":
            counter.offer(device, manifest_of(device), 0.0)
        assert [device for device, _ in counter.next_grants(30.0)] == ["b"]
        counter.suspend("b")
        assert [device for device, _ in counter.next_grants(30.0)] == ["c"]
        counter.release("c")
        assert counter.next_grants(31.0) == [("a", granted(device="a"))]
        assert counter.waiting == 0

    def test_is_served_in_turn(self):
        """A free slot goes to the device that has waited longest, unasked."""
        counter = desk()
        for device in "abc":
            counter.offer(device, manifest_of(device), 0.0)
        assert counter.next_grants(1.0) == []
        counter.release("a")
        assert counter.next_grants(1.0) == [("b", granted(device="b"))]
        counter.release("b")
        assert counter.next_grants(1.0) == [("c", granted(device="c"))]

    def test_keeps_the_place_of_a_device_that_asks_again(self):
        """Offering again, as it was told to, does not put it at the end."""
        counter = desk()
        for device in "abcb":
            counter.offer(device, manifest_of(device), 0.0)
        assert counter.waiting == 2
        counter.release("a")
        assert [device for device, _ in counter.next_grants(1.0)] == ["b"]

    def test_lets_nobody_push_in(self):
        """A free slot is not for the one who asks just now while others wait."""
        counter = desk()
        for device in "abc":
            counter.offer(device, manifest_of(device), 0.0)
        counter.release("a")
        assert isinstance(counter.offer("c", manifest_of("c"), 1.0), RetryAfter)
        assert isinstance(counter.offer("b", manifest_of("b"), 1.0), Grant)

    def test_takes_the_slot_of_a_device_that_is_silent(self):
        """Silence ends a turn, but only if somebody waits."""
        counter = desk(idle_s=30.0)
        counter.offer("a", manifest_of("a"), 0.0)
        assert counter.next_deadline() is None
        assert counter.next_grants(1000.0) == []
        counter.chunk("a", chunk_of("a", 0), 1000.0)
        counter.offer("b", manifest_of("b"), 1010.0)
        assert counter.next_deadline() == 1030.0
        assert counter.next_grants(1029.9) == []
        assert [device for device, _ in counter.next_grants(1030.0)] == ["b"]
        assert counter.chunk("a", chunk_of("a", 1), 1031.0) is None

    def test_forgets_those_who_leave(self):
        """A device that gave up, or went away, is not called."""
        counter = desk()
        for device in "abcd":
            counter.offer(device, manifest_of(device), 0.0)
        counter.suspend("b")
        for device in "abc":
            counter.release(device)
        assert [device for device, _ in counter.next_grants(1.0)] == ["d"]

    def test_is_gone_when_the_round_is(self):
        """Nothing is left behind for the next round."""
        counter = desk()
        for device in "ab":
            counter.offer(device, manifest_of(device), 0.0)
        counter.clear()
        assert (counter.waiting, counter.next_deadline(), counter.next_grants(1.0)) == (0, None, [])


def test_a_device_that_brings_nothing_new_loses_its_place():
    """To say the same again keeps a place for so long only, and only while nobody waits is that of no account."""
    counter = desk()
    counter.offer("a", manifest_of("a"), 0.0)
    counter.chunk("a", chunk_of("a", 0), 1.0)
    now = 1.0
    while now < STALL_S:
        now += 5.0
        counter.chunk("a", chunk_of("a", 0), now)
        counter.offer("a", manifest_of("a"), now)
    assert isinstance(counter.offer("b", manifest_of("b"), now), Grant)
    assert isinstance(counter.offer("a", manifest_of("a"), now), RetryAfter)
