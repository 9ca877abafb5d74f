"""Both ends of a transfer, joined by a bad link: it always arrives, whole, and never too much is under way."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from coordinator.uploads import Complete, UploadDesk
from shared.messages import Ack, Committed, Grant, Manifest, Need, Offer, RetryAfter
from shared.transfer import Bitmap, Chunk, Download, SendChunk, Upload, cut, describe
from simulator.agenda import Agenda
from tests.virtual_time import Faults, FaultyLink

LIMIT_S = 50_000.0

faults = st.builds(
    Faults,
    drop=st.sampled_from((0.0, 0.05, 0.3)),
    duplicate=st.sampled_from((0.0, 0.1, 0.5)),
    delay_s=st.sampled_from((0.0, 0.5, 10.0)),
)
seeds = st.integers(0, 2**32)


def announced(blob: bytes) -> Manifest:
    """In chunks of ten bytes."""
    return describe(blob, chunk_bytes=10, encoding="fp32", raw_bytes=len(blob), schema="5c" * 32)


@given(faults, seeds, st.integers(1, 300), st.integers(1, 8), st.sets(st.integers(0, 29)))
def test_a_download_arrives(bad, seed, size, window, kept):
    """The coordinator publishes once and then only what is asked for; the device ends with the whole blob."""
    rng, agenda = random.Random(seed), Agenda(3.3)
    link = FaultyLink(agenda, rng, bad)
    blob = rng.randbytes(size)
    manifest = announced(blob)
    parts = {i: cut(blob, manifest, i).data for i in kept if i < manifest.chunk_count}
    download = Download(manifest, agenda.now, have=parts, window=window)

    def arrive(chunk: Chunk) -> None:
        if download.take(chunk, agenda.now):
            assert chunk.index not in parts
            parts[chunk.index] = chunk.data

    def publish(need: Need) -> None:
        for index in Bitmap.from_bytes(manifest.chunk_count, need.missing):
            link.send(partial(arrive, cut(blob, manifest, index)))

    publish(Need(manifest.digest, Bitmap(manifest.chunk_count, range(manifest.chunk_count)).to_bytes()))
    while (deadline := download.next_deadline()) is not None:
        assert deadline < LIMIT_S
        while (at := agenda.next_at()) is not None and at <= deadline:
            agenda.run_next()
        agenda.now = max(agenda.now, deadline)
        need = download.tick(agenda.now)
        if need is not None:
            assert len(Bitmap.from_bytes(manifest.chunk_count, need.missing)) <= window
            link.send(partial(publish, need))
    assert b"".join(parts[i] for i in sorted(parts)) == blob


class Sender:
    """A device with an update, which checks that it keeps to its window."""

    def __init__(self, name: str, world: Uploads, size: int) -> None:
        self.name = name
        self.world = world
        self.blob = random.Random(name).randbytes(size)
        self.manifest = announced(self.blob)
        self.upload = Upload(self.manifest, world.agenda.now)
        self.under_way: Counter[int] = Counter()
        self.done = False

    def tick(self) -> None:
        """Lets time pass."""
        self.perform(self.upload.tick(self.world.agenda.now))

    def perform(self, sends: list[Offer | SendChunk]) -> None:
        """What is under way since the last offer never exceeds the window."""
        for one in sends:
            if isinstance(one, Offer):
                self.under_way.clear()
                self.world.link.send(partial(self.world.on_offer, self))
            else:
                self.under_way[one.index] += 1
                part = cut(self.blob, self.manifest, one.index)
                self.world.link.send(partial(self.world.on_chunk, self, part))
        assert self.under_way.total() <= self.world.window

    def hear(self, answer: Grant | RetryAfter | Ack | Committed) -> None:
        """An answer of the coordinator; after the last one nothing is of interest."""
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
                heard = self.upload.on_grant if isinstance(answer, Grant) else self.upload.on_ack
                self.perform(heard(answer, now))  # type: ignore[arg-type]


class Uploads:
    """A desk and its senders."""

    def __init__(self, bad: Faults, seed: int, slots: int, window: int) -> None:
        rng = random.Random(seed)
        self.slots = slots
        self.window = window
        self.agenda = Agenda(7.7)
        self.link = FaultyLink(self.agenda, rng, bad)
        self.desk = UploadDesk(slots=slots, window=window, idle_s=30.0, jitter=rng)
        self.received: dict[str, bytes] = {}
        self.offers = self.chunks = 0

    def on_offer(self, sender: Sender) -> None:
        """What is here already is committed again."""
        self.offers += 1
        known = sender.name in self.received
        answer = (
            Committed(sender.manifest.digest)
            if known
            else self.desk.offer(sender.name, sender.manifest, self.agenda.now)
        )
        self.answer(sender, answer)

    def on_chunk(self, sender: Sender, chunk: Chunk) -> None:
        """The last one completes the update."""
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
        """Over the bad link."""
        assert len(self.desk._active) <= self.slots
        self.link.send(partial(sender.hear, body))

    def run(self, senders: list[Sender]) -> None:
        """Until everybody has been told `committed`."""
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
    """Every device gets its update through and is told so, within its window and in one of the slots."""
    world = Uploads(bad, seed, slots, window)
    senders = [Sender(f"pi-{number}", world, size) for number, size in enumerate(sizes)]
    world.run(senders)
    assert world.received == {sender.name: sender.blob for sender in senders}


@given(seeds, st.integers(1, 300), st.integers(1, 9))
def test_without_faults_nothing_is_sent_twice(seed, size, window):
    """On a good link an update costs its chunks and one offer."""
    world = Uploads(Faults(), seed, slots=1, window=window)
    sender = Sender("pi", world, size)
    world.run([sender])
    assert (world.offers, world.chunks) == (1, sender.manifest.chunk_count)
