"""Both ends of a transfer, joined by a bad link: the blob always arrives whole, and the chunks in flight are bounded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.upload_scheduler import Complete, UploadScheduler
from fedpatch.shared.wire.chunk_download import Download
from fedpatch.shared.wire.chunk_upload import SendChunk, Upload
from fedpatch.shared.wire.chunks import Bitmap, Chunk, cut, describe
from fedpatch.shared.wire.messages import Ack, Committed, Grant, Manifest, Offer, RetryAfter
from fedpatch.simulator.fleet.virtual_clock import VirtualClock
from tests.support.virtual_time import LATENCY_S, Faults, FaultyLink

LIMIT_S = 50_000.0

faults = st.builds(
    Faults,
    drop=st.sampled_from((0.0, 0.05, 0.3)),
    duplicate=st.sampled_from((0.0, 0.1, 0.5)),
    delay_s=st.sampled_from((0.0, 0.5, 10.0)),
)
seeds = st.integers(0, 2**32)


def announced(blob: bytes) -> Manifest:
    """Return a manifest with chunks of ten bytes."""
    return describe(blob, chunk_bytes=10, encoding="fp32", raw_bytes=len(blob), schema="5c" * 32)


class Receiver:
    """A device that downloads, and a coordinator that publishes requested chunks; `retained`: first all chunks at once."""

    def __init__(self, bad: Faults, seed: int, size: int, window: int, kept: set[int]) -> None:
        rng = random.Random(seed)
        self.agenda = VirtualClock(3.3)
        self.link = FaultyLink(self.agenda, rng, bad)
        self.blob = rng.randbytes(size)
        self.manifest = announced(self.blob)
        self.parts = {i: cut(self.blob, self.manifest, i).data for i in kept if i < self.manifest.chunk_count}
        self.missing = self.manifest.chunk_count - len(self.parts)
        self.download = Download(
            [self.manifest], self.agenda.now, have={self.manifest.digest: self.parts}, window=window
        )
        self.window = window
        self.asked_at: list[float] = []

    def publish(self, indices: Iterable[int]) -> None:
        """Send chunks over the bad link."""
        for index in indices:
            self.link.send(partial(self.arrive, cut(self.blob, self.manifest, index)))

    def arrive(self, chunk: Chunk) -> None:
        """Store a new chunk, once."""
        if self.download.take(chunk, self.agenda.now):
            assert chunk.index not in self.parts
            self.parts[chunk.index] = chunk.data

    def run(self, *, retained: bool) -> None:
        """Run until all chunks are here; no request is for more than a window."""
        if retained:
            self.publish(range(self.manifest.chunk_count))
        while (deadline := self.download.next_deadline()) is not None:
            assert deadline < LIMIT_S
            if (at := self.agenda.next_at()) is not None and at <= deadline:
                self.agenda.run_next()
                continue
            self.agenda.now = max(self.agenda.now, deadline)
            for need in self.download.tick(self.agenda.now):
                wanted = list(Bitmap.from_bytes(self.manifest.chunk_count, need.missing))
                assert 0 < len(wanted) <= self.window
                self.asked_at.append(self.agenda.now)
                self.link.send(partial(self.publish, wanted))
        assert b"".join(self.parts[i] for i in sorted(self.parts)) == self.blob


@given(faults, seeds, st.integers(1, 300), st.integers(1, 8), st.sets(st.integers(0, 29)), st.booleans())
def test_a_download_arrives_and_its_requests_are_bounded(bad, seed, size, window, kept, retained):
    """The whole blob arrives, retained or not; there is at most one request without a pause of a second for each window."""
    receiver = Receiver(bad, seed, size, window, kept)
    receiver.run(retained=retained)
    at_once = sum(later - earlier < 1.0 for earlier, later in pairwise(receiver.asked_at))
    assert at_once <= receiver.missing // window


@given(seeds, st.integers(1, 300), st.integers(1, 8), st.sets(st.integers(0, 29)))
def test_download_without_retained_chunks_waits_once(seed, size, window, kept):
    """After the first pause the windows follow each other as fast as the link allows, and no chunk is asked for twice."""
    receiver = Receiver(Faults(), seed, size, window, kept)
    receiver.run(retained=False)
    windows = -(-receiver.missing // window)
    assert len(receiver.asked_at) == windows
    if windows:
        assert receiver.agenda.now == pytest.approx(3.3 + 1.0 + windows * 2 * LATENCY_S)


@given(seeds, st.integers(1, 300), st.integers(1, 8), st.sampled_from((0.0, 0.5)))
def test_retained_chunks_are_not_requested(seed, size, window, delay_s):
    """On a link that loses nothing, all chunks arrive without a request."""
    receiver = Receiver(Faults(delay_s=delay_s), seed, size, window, set())
    receiver.run(retained=True)
    assert receiver.asked_at == []


class Sender:
    """A device with an update, which asserts that it stays within its window."""

    def __init__(self, name: str, world: Uploads, size: int) -> None:
        self.name = name
        self.world = world
        self.blob = random.Random(name).randbytes(size)
        self.manifest = announced(self.blob)
        self.upload = Upload(self.manifest, world.agenda.now)
        self.under_way: Counter[int] = Counter()
        self.done = False

    def tick(self) -> None:
        """Send the messages that are due now."""
        self.perform(self.upload.tick(self.world.agenda.now))

    def perform(self, sends: list[Offer | SendChunk]) -> None:
        """Send these; the chunks in flight since the last offer never exceed the window."""
        for one in sends:
            if isinstance(one, Offer):
                self.under_way.clear()
                self.world.link.send(partial(self.world.on_offer, self))
            else:
                self.under_way[one.index] += 1
                part = cut(self.blob, self.manifest, one.index)
                self.world.link.send(partial(self.world.on_chunk, self, part))
        assert self.under_way.total() <= self.world.window

    def receive(self, answer: Grant | RetryAfter | Ack | Committed) -> None:
        """Handle an answer of the coordinator; answers after the last one are ignored."""
        if self.done:
            return
        now = self.world.agenda.now
        match answer:
            case Committed():
                self.done = True
            case RetryAfter(delay_s=delay_s):
                self.upload.on_retry_after(delay_s, now)
            case Grant() | Ack():
                for index in Bitmap.from_bytes(self.manifest.chunk_count, answer.have):
                    del self.under_way[index]
                on_answer = self.upload.on_grant if isinstance(answer, Grant) else self.upload.on_ack
                self.perform(on_answer(answer, now))  # type: ignore[arg-type]


class Uploads:
    """An upload scheduler and its senders."""

    def __init__(self, bad: Faults, seed: int, slots: int, window: int) -> None:
        rng = random.Random(seed)
        self.in_flight = slots * window
        self.window = window
        self.agenda = VirtualClock(7.7)
        self.link = FaultyLink(self.agenda, rng, bad)
        self.desk = UploadScheduler(slots=slots, window=window, idle_s=30.0, jitter=rng)
        self.received: dict[str, bytes] = {}
        self.offers = self.chunks = 0

    def on_offer(self, sender: Sender) -> None:
        """Answer an offer; an update that is here already is committed again."""
        self.offers += 1
        known = sender.name in self.received
        answer = (
            Committed(sender.manifest.digest)
            if known
            else self.desk.offer(sender.name, sender.manifest, self.agenda.now)
        )
        self.answer(sender, answer)

    def on_chunk(self, sender: Sender, chunk: Chunk) -> None:
        """Take a chunk; the last one completes the update."""
        self.chunks += 1
        answer = self.desk.chunk(sender.name, chunk, self.agenda.now)
        if isinstance(answer, Complete):
            assert answer.intact
            assert sender.name not in self.received
            self.received[sender.name] = answer.blob
            self.answer(sender, Committed(answer.manifest.digest))
        elif answer is not None:
            self.answer(sender, answer)

    def answer(self, sender: Sender, body: Grant | RetryAfter | Ack | Committed) -> None:
        """Answer over the bad link; the windows of all granted senders together are within the bound of chunks in flight."""
        granted = [min(self.window, slot.manifest.chunk_count) for slot in self.desk._active.values()]
        assert sum(granted) <= self.in_flight
        self.link.send(partial(sender.receive, body))

    def run(self, senders: list[Sender]) -> None:
        """Run until all senders have received `committed`."""
        by_name = {sender.name: sender for sender in senders}
        while waiting := [sender for sender in senders if not sender.done]:
            due = [sender.upload.next_deadline() for sender in waiting]
            due += [at for at in (self.agenda.next_at(), self.desk.next_deadline()) if at is not None]
            at = max(self.agenda.now, min(due))
            assert at < LIMIT_S
            if self.agenda.next_at() == at:
                self.agenda.run_next()
            self.agenda.now = at
            for sender in waiting:
                if not sender.done:
                    sender.tick()
            for name, grant in self.desk.next_grants(self.agenda.now):
                self.answer(by_name[name], grant)


@given(faults, seeds, st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 9))
def test_uploads_arrive(bad, seed, sizes, slots, window):
    """Every device completes its upload and receives `committed`, within its window and its share of the chunks in flight."""
    world = Uploads(bad, seed, slots, window)
    senders = [Sender(f"pi-{number}", world, size) for number, size in enumerate(sizes)]
    world.run(senders)
    assert world.received == {sender.name: sender.blob for sender in senders}


@given(seeds, st.integers(1, 300), st.integers(1, 9))
def test_without_faults_nothing_is_sent_twice(seed, size, window):
    """On a good link an update needs each of its chunks and the offer only once."""
    world = Uploads(Faults(), seed, slots=1, window=window)
    sender = Sender("pi", world, size)
    world.run([sender])
    assert (world.offers, world.chunks) == (1, sender.manifest.chunk_count)


@pytest.mark.parametrize("seed", range(4))
def test_devices_in_line_do_not_take_each_others_places_for_ever(seed):
    """If more than half of all messages are lost, a device with an upload slot still sends often enough to keep it."""
    world = Uploads(Faults(drop=0.6), seed, slots=2, window=8)
    senders = [Sender(f"pi-{number}", world, 200) for number in range(8)]
    world.run(senders)
    # If pauses were as long as the time after which a slot expires, this would take more than 20,000 s.
    assert world.agenda.now < 6000.0
