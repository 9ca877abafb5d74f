"""Devices without training, many in a process: `python -m benchmarks.instant_devices URL TASK FIRST COUNT`.

Each has a connection of its own (the agent's link over paho) and the agent's own job: requests, chunks, offers and what is sent
again are the real thing. Missing are the disk and the training: as soon as a device has the model it offers an update. Its
values are the global model's and a little noise; it is packed once in each round for all devices of the process, because
this is about the coordinator, and a fleet's devices pack at the same time, each on a processor of its own.

Says "ready" on stdout when all are connected and have told of themselves; ends when stdin does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

from benchmarks.stand_in import StandIn
from device_agent.admission import Verdict
from device_agent.effects import Effect, Fetch, Forget, Keep, Reply, Train
from device_agent.job import Job
from shared import __version__, topics
from shared.codec import decode, encode
from shared.link import Connected, Disconnected, LinkEvent, MqttLink, Received
from shared.messages import (
    ENCODINGS,
    MAX_BLOB_BYTES,
    CoordinatorState,
    DeviceState,
    Envelope,
    Manifest,
    TaskCapability,
    WorkRequest,
)
from shared.task import find_task
from shared.transfer import SendChunk, decode_chunk

FLEET = "benchmark"
TICK_S = 0.1
_WILLING = Verdict(True)

Inbox = SimpleQueue[tuple["InstantDevice", LinkEvent]]


class InstantDevice:
    """One device: what happens to it is handled in the process's only thread that is not a link's."""

    def __init__(self, url: str, name: str, capability: TaskCapability, stand_in: StandIn, inbox: Inbox) -> None:
        self.name = name
        self.connected = False
        self._tasks = (capability,)
        self._stand_in = stand_in
        self._job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        self._coordinator = self._held = ""
        self._fetched: tuple[str, ...] = ()
        self._update: Manifest | None = None
        gone = encode(Envelope(DeviceState(online=False, boot=name)))
        self._link = MqttLink(
            url,
            client_id=f"fedpatch.{FLEET}.device.{name}",
            events=lambda event: inbox.put((self, event)),
            will=(topics.device_state(FLEET, name), gone),
            clean_start=True,
        )
        self._link.subscribe(*topics.device_filters(FLEET, name))

    def start(self) -> None:
        """Connect."""
        self._link.start()

    def handle(self, event: LinkEvent, now: float) -> None:
        """One event of its link."""
        match event:
            case Connected():
                self.connected = True
                self._tell_state()
                self._job.reconnected(now)
            case Disconnected(reason=reason):
                sys.stderr.write(f"{self.name}: {reason}\n")
            case Received():
                self._perform(self._on_received(event, now))

    def tick(self, now: float) -> None:
        """Lets time pass."""
        deadline = self._job.next_deadline()
        if deadline is not None and now >= deadline:
            self._perform(self._job.tick(now))

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        topic = topics.parse_topic(FLEET, event.topic)
        if topic is None or not event.payload:
            return []
        if topic.kind == "model_chunk":
            return self._job.on_chunk(decode_chunk(event.payload), now)
        envelope = decode(event.payload)
        if isinstance(envelope.body, WorkRequest):
            return self._job.on_request(envelope, self._tasks, _WILLING, now, self._held)
        if topic.kind == "down":
            return self._job.on_message(envelope, now)
        if isinstance(envelope.body, CoordinatorState) and envelope.body.boot != self._coordinator:
            self._coordinator = envelope.body.boot
            self._tell_state()
        return []

    def _perform(self, effects: list[Effect]) -> None:
        queue = deque(effects)
        while queue:
            queue.extend(self._do(queue.popleft()))

    def _do(self, effect: Effect) -> list[Effect]:
        match effect:
            case Reply():
                self._link.publish(topics.up(FLEET, self.name), encode(effect.envelope))
            case Fetch():
                self._fetched = tuple(topics.model_chunks_filter(FLEET, blob.digest) for blob in effect.blobs)
                self._link.subscribe(*self._fetched)
                return self._job.fetching({}, time.monotonic())
            case Keep():
                self._stand_in.keep(effect.chunk)
            case Train():
                self._link.unsubscribe(*self._fetched)
                self._update = self._stand_in.train(effect.request, effect.way)
                self._held = effect.request.model.digest
                return self._job.trained(effect.key, self._update, time.monotonic())
            case SendChunk() if self._update is not None:
                payload = self._stand_in.chunk(self._update, effect.index)
                topic = topics.update_chunk(FLEET, self.name, self._update.digest, effect.index)
                self._link.publish(topic, payload)
            case Forget():
                self._update = None
        return []

    def _tell_state(self) -> None:
        job = self._job.status()
        state = DeviceState(True, self.name, __version__, self._tasks, ENCODINGS, job)
        self._link.publish(topics.device_state(FLEET, self.name), encode(Envelope(state)), retain=True)


def main() -> None:
    """Until stdin ends."""
    url, task_ref, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    stand_in = StandIn(find_task(task_ref))
    capability = TaskCapability(stand_in.task.name, stand_in.schema.digest, 600)
    inbox: Inbox = SimpleQueue()
    devices = [
        InstantDevice(url, f"device-{number:05d}", capability, stand_in, inbox)
        for number in range(first, first + count)
    ]
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    for device in devices:
        device.start()
    told = False
    tick_at = 0.0
    while True:
        try:
            device, event = inbox.get(timeout=TICK_S)
            device.handle(event, time.monotonic())
        except Empty:
            pass
        if (now := time.monotonic()) >= tick_at:
            tick_at = now + TICK_S
            for device in devices:
                device.tick(now)
        if not told and all(device.connected for device in devices):
            told = True
            sys.stdout.write('"ready"\n')
            sys.stdout.flush()


def _end_with_stdin() -> None:
    """At once, and so with a last will: nobody waits for these devices any more."""
    while sys.stdin.readline():
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
