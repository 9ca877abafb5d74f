"""Links of a coordinator and some devices on one broker, with the real code of both ends of a transfer, without training."""

from __future__ import annotations

import queue
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from fedpatch.coordinator.rounds.chunk_resends import ChunkResender
from fedpatch.coordinator.rounds.upload_scheduler import Complete, UploadScheduler
from fedpatch.shared.mqtt.client import Connected, LinkEvent, MqttLink, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunk_download import Download
from fedpatch.shared.wire.chunk_sizes import chunk_bytes_within
from fedpatch.shared.wire.chunk_upload import SendChunk, Upload
from fedpatch.shared.wire.chunks import cut, decode_chunk, describe, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Ack, Body, Committed, Envelope, Grant, Manifest, Need, Offer, RetryAfter
from tests.broker.contract.targets import Target

COORDINATOR = "coordinator"
CHUNK_BYTES = 96 * 1024
PATIENCE_S = 100.0
_TURN_S = 0.1

Events = queue.SimpleQueue[tuple[str, LinkEvent]]


@dataclass
class Parties:
    """Connected links by name, and one queue for all their messages. `about` has the limits that the broker announced."""

    fleet: str
    links: dict[str, MqttLink]
    events: Events
    about: Connected

    def manifest(self, blob: bytes, chunk_bytes: int = CHUNK_BYTES) -> Manifest:
        """Return the manifest of a blob in chunks of this size, or of the largest size that the broker accepts."""
        chunk_bytes = chunk_bytes_within(chunk_bytes, self.about.max_packet_bytes)
        return describe(blob, chunk_bytes=chunk_bytes, encoding="fp32", raw_bytes=len(blob), schema="5c" * 32)

    def settle(self) -> None:
        """Return once the broker has acknowledged all messages of the coordinator; later subscriptions come after them."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not self.links[COORDINATOR].idle:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)

    def send(self, device: str, body: Body) -> None:
        self.links[COORDINATOR].publish(topics.down(self.fleet, device), encode(Envelope(body)))

    def answer(self, device: str, body: Body) -> None:
        self.links[device].publish(topics.up(self.fleet, device), encode(Envelope(body)))

    def play(self, receive: Callable[[str, Received, float], None], tick: Callable[[float], float | None]) -> None:
        """Pass messages to `receive` until `tick` returns None; otherwise `tick` returns the time of its next call.

        While this process is stopped, its time stops too: messages that wait in its queues meanwhile are not late.
        """
        now = looked_at = time.monotonic()
        give_up_at = now + PATIENCE_S
        while (due := tick(now)) is not None:
            if looked_at > give_up_at:
                raise TimeoutError("the transfer does not come to an end")
            name, event = "", None
            with suppress(queue.Empty):
                name, event = self.events.get(timeout=min(_TURN_S, max(0.0, due - now)))
            before, looked_at = looked_at, time.monotonic()
            now += min(looked_at - before, 2 * _TURN_S)
            if isinstance(event, Received) and event.payload:
                receive(name, event, now)


@contextmanager
def parties(target: Target, fleet: str, devices: Sequence[str]) -> Iterator[Parties]:
    """The links of the coordinator and of `devices`, connected and subscribed as in a run; the `with` ends them."""
    events: Events = queue.SimpleQueue()
    links: dict[str, MqttLink] = {}
    with ExitStack() as stack:
        for name in (COORDINATOR, *devices):
            put = partial(_put, events, name)
            links[name] = link = MqttLink(
                target.url,
                client_id=f"{fleet}.{name}",
                events=put,
                username=target.login.get("username"),
                password=target.login.get("password"),
                clean_start=True,
            )
            own = topics.coordinator_filters(fleet) if name == COORDINATOR else topics.device_filters(fleet, name)
            link.subscribe(*own)
            link.start()
            stack.callback(link.stop)
        for link in links.values():
            about = link.wait_connected(PATIENCE_S)
        yield Parties(fleet, links, events, about)


def _put(events: Events, name: str, event: LinkEvent) -> None:
    events.put((name, event))


@dataclass
class Getting:
    """Devices that download a model; each device discards the first copy of some chunks, as if they were lost."""

    together: Parties
    manifest: Manifest
    publish_again: Callable[[tuple[int, ...]], None]
    downloads: dict[str, Download] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    needs: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._repairs = ChunkResender(self.manifest)
        self._lose = random.Random(5)
        self._lost = {
            name: set(self._lose.sample(range(self.manifest.chunk_count), 8))
            for name in self.together.links
            if name != COORDINATOR
        }
        for name in self._lost:
            self.together.links[name].subscribe(topics.model_chunks_filter(self.together.fleet, self.manifest.digest))
            self.downloads[name] = Download([self.manifest], time.monotonic())
            self.parts[name] = {}

    def receive(self, name: str, event: Received, now: float) -> None:
        """Handle a chunk for a device, or a device's `need`."""
        topic = topics.parse_topic(self.together.fleet, event.topic)
        if topic is None:
            return
        if topic.kind == "model_chunk" and name != COORDINATOR:
            chunk = decode_chunk(event.payload)
            if chunk.index in self._lost[name]:
                self._lost[name].discard(chunk.index)
            elif self.downloads[name].take(chunk, now):
                self.parts[name][chunk.index] = chunk.data
        elif topic.kind == "up" and name == COORDINATOR:
            need = decode(event.payload).body
            assert isinstance(need, Need)
            self.publish_again(self._repairs.due(need, now))

    def tick(self, now: float) -> float | None:
        """Send the devices' `need`s that are due; return the next due time, or None when all devices have all chunks."""
        for name, download in self.downloads.items():
            for need in download.tick(now):
                self.needs[name] += 1
                self.together.answer(name, need)
        due = [at for download in self.downloads.values() if (at := download.next_deadline()) is not None]
        return min(due, default=None)

    def blob(self, name: str) -> bytes:
        return b"".join(data for _, data in sorted(self.parts[name].items()))


@dataclass
class Giving:
    """Devices that upload, and the coordinator's upload scheduler. `chunks` counts the chunks that each device sent."""

    together: Parties
    blobs: dict[str, bytes]
    received: dict[str, bytes] = field(default_factory=dict)
    chunks: Counter[str] = field(default_factory=Counter)
    most: int = 0

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._desk = UploadScheduler(slots=4, window=8, idle_s=10.0, jitter=random.Random(1))
        self._manifests = {name: self.together.manifest(blob) for name, blob in self.blobs.items()}
        self._uploads = {name: Upload(manifest, now) for name, manifest in self._manifests.items()}

    def receive(self, name: str, event: Received, now: float) -> None:
        """Handle a message for the upload scheduler or for a device."""
        topic = topics.parse_topic(self.together.fleet, event.topic)
        if topic is None:
            return
        if name == COORDINATOR and topic.kind == "update_chunk":
            self._at_the_desk(topic.device, self._desk.chunk(topic.device, decode_chunk(event.payload), now))
        elif name == COORDINATOR and topic.kind == "up":
            offer = decode(event.payload).body
            assert isinstance(offer, Offer)
            done = topic.device in self.received
            answer = Committed(offer.manifest.digest) if done else self._desk.offer(topic.device, offer.manifest, now)
            self._at_the_desk(topic.device, answer)
        elif topic.kind == "down" and name in self._uploads:
            self._at_the_device(name, decode(event.payload).body, now)

    def tick(self, now: float) -> float | None:
        """Send the offers and grants that are due; return the next due time, or None when all have received `committed`."""
        for name, upload in self._uploads.items():
            self._send(name, upload.tick(now))
        for name, grant in self._desk.next_grants(now):
            self._at_the_desk(name, grant)
        return min((upload.next_deadline() for upload in self._uploads.values()), default=None)

    def _at_the_desk(self, device: str, answer: Grant | RetryAfter | Ack | Complete | Committed | None) -> None:
        self.most = max(self.most, len(self._desk._active))
        if isinstance(answer, Complete):
            assert answer.intact
            self.received[device] = answer.blob
            answer = Committed(answer.manifest.digest)
        if answer is not None:
            self.together.send(device, answer)

    def _at_the_device(self, name: str, body: Body, now: float) -> None:
        upload = self._uploads[name]
        match body:
            case Grant():
                self._send(name, upload.on_grant(body, now))
            case Ack():
                self._send(name, upload.on_ack(body, now))
            case RetryAfter():
                upload.on_retry_after(body.delay_s, now)
            case Committed():
                del self._uploads[name]

    def _send(self, name: str, sends: Sequence[Offer | SendChunk]) -> None:
        manifest = self._manifests[name]
        for one in sends:
            if isinstance(one, Offer):
                self.together.answer(name, one)
                continue
            self.chunks[name] += 1
            topic = topics.update_chunk(self.together.fleet, name, manifest.digest, one.index)
            self.together.links[name].publish(topic, encode_chunk(cut(self.blobs[name], manifest, one.index)))
