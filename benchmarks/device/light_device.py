"""A device without torch and without a disk: the agent's real job and its real link, with an untrained update.

Hundreds of devices fit into a process, so a coordinator and a broker have a thousand real MQTT sessions on one machine.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.device.light_updates import StandInUpdates
from fedpatch.device_agent.job.download_plan import plan_download
from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    DropHeldModel,
    Effect,
    EndJob,
    ForgetMasking,
    JobState,
    MaskUpdate,
    SaveBase,
    SaveMasking,
    SendAfterSave,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    StopDownload,
    WriteChunk,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    DownloadByBroker,
    DownloadDamaged,
    DownloadStarted,
    JobEvent,
    LinkRestored,
    MessageReceived,
    ModelEvaluated,
    UpdateTrained,
    VectorTrained,
    WorkRequested,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.runtime.model_fetcher import ChunkFetched, FetchEnded, FetchEvent, ModelFetch, ModelFetcher
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.shared import __version__
from fedpatch.shared.masking.masked_blob import mask_blob
from fedpatch.shared.mqtt.broker_profile import UNLIMITED, BrokerProfile
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, MqttLink, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import Chunk, cut, decode_chunk, describe, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.features import DEVICE_FEATURES, MASKED_FEATURE, URL_FEATURE
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    MAX_BLOB_BYTES,
    CoordinatorState,
    DeviceState,
    Envelope,
    Manifest,
    TaskCapability,
    WorkRequest,
    is_delta,
)

_WILLING = AdmissionDecision(True)
# Of the present and the last rounds.
_BLOBS = 8


@dataclass
class Tally:
    """Activity of the devices of a process: `outcomes` of jobs, and sent and received messages and bytes."""

    outcomes: Counter[str] = field(default_factory=Counter)
    connects: int = 0
    disconnects: int = 0
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    fetched_bytes: int = 0
    downloads_s: list[float] = field(default_factory=list)


class ModelChunks:
    """Chunks of global models, kept once for all devices of a process, although each device has received them."""

    def __init__(self) -> None:
        self._parts: OrderedDict[str, dict[int, bytes]] = OrderedDict()

    def same(self, chunk: Chunk) -> bytes:
        """Return the data of a chunk, or the equal bytes that another device has."""
        if chunk.digest not in self._parts:
            self._parts[chunk.digest] = {}
            if len(self._parts) > _BLOBS:
                self._parts.popitem(last=False)
        known = self._parts[chunk.digest].setdefault(chunk.index, chunk.data)
        return known if known == chunk.data else chunk.data


class LightDevice:
    """One device. `events` receives the link's events; the thread of the device passes them to `handle`, and calls `tick`.

    With `ca_file` the device fetches models by URL, from servers with a certificate of this CA.
    """

    def __init__(  # noqa: PLR0913 - what the devices of a process share
        self,
        identity: Identity,
        *,
        broker: str,
        events: Callable[[LightDevice, LinkEvent | FetchEvent], None],
        capability: TaskCapability,
        updates: StandInUpdates,
        chunks: ModelChunks,
        tally: Tally,
        profile: BrokerProfile = UNLIMITED,
        ca_file: Path | None = None,
    ) -> None:
        self._fetch: ModelFetch | None = None
        self._fetcher = None
        if ca_file is not None:
            self._fetcher = ModelFetcher(lambda event: events(self, event), ca_files=[ca_file], plain_loopback=True)
        self.me = identity
        self.connected = False
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES, masking=MaskingRounds(identity.device, os.urandom))
        self._tasks = (capability,)
        self._updates = updates
        self._chunks = chunks
        self._tally = tally
        self._coordinator_boot = ""
        self._parts: dict[str, dict[int, bytes]] = {}
        self._held = ""
        self._update: tuple[Manifest, bytes] | None = None
        self._vector = b""  # the vector of a masked round, before masking
        self.link = MqttLink(
            broker,
            client_id=identity.client_id,
            events=lambda event: events(self, event),
            will=identity.will(),
            reconnect_delay_s=(1.0, 10.0),
            profile=profile,
        )
        self.link.subscribe(*topics.device_filters(identity.fleet, identity.device))

    def handle(self, event: LinkEvent | FetchEvent, now: float) -> None:
        """Handle an event of the link, or of a download by URL."""
        match event:
            case ChunkFetched() | FetchEnded():
                for one in self._on_fetch(event):
                    self._perform(self.job.handle(one, now), now)
            case Connected():
                self.connected = True
                self._tally.connects += 1
                self._tell_state()
                self.job.handle(LinkRestored(), now)
            case Disconnected():
                self.connected = False
                self._tally.disconnects += 1
            case Received():
                self._tally.received += 1
                self._tally.received_bytes += len(event.payload)
                self._on_received(event, now)

    def tick(self, now: float) -> None:
        """Check the deadlines of the job."""
        if self.connected and self.job.state is not JobState.IDLE:
            self._perform(self.job.tick(now), now)

    def _on_received(self, event: Received, now: float) -> None:
        topic = topics.parse_topic(self.me.fleet, event.topic)
        if topic is None or not event.payload:
            return
        if topic.kind == "model_chunk":
            self._perform(self.job.handle(ChunkReceived(decode_chunk(event.payload)), now), now)
            return
        envelope = decode(event.payload)
        body = envelope.body
        if isinstance(body, WorkRequest):
            held = self._held if self._updates.has(self._held) else ""
            plan = plan_download(body, held, MAX_BLOB_BYTES)
            envelope = replace(envelope, body=body.at({}))
            self._perform(self.job.handle(WorkRequested(envelope, self._tasks, _WILLING, plan), now), now)
        elif topic.kind == "down":
            self._perform(self.job.handle(MessageReceived(envelope), now), now)
        elif isinstance(body, CoordinatorState) and body.online and body.boot != self._coordinator_boot:
            self._coordinator_boot = body.boot
            self._tell_state()
            self.job.handle(LinkRestored(), now)

    def _tell_state(self) -> None:
        state = DeviceState(
            True,
            self.me.boot,
            __version__,
            tasks=self._tasks,
            encodings=ENCODINGS,
            job=self.job.status(),
            features=(*DEVICE_FEATURES, MASKED_FEATURE, *((URL_FEATURE,) if self._fetcher else ())),
        )
        self._publish(topics.device_state(self.me.fleet, self.me.device), encode(Envelope(state)), retain=True)

    def _publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._tally.sent += 1
        self._tally.sent_bytes += len(payload)
        self.link.publish(topic, payload, retain=retain)

    def _perform(self, effects: list[Effect], now: float) -> None:
        drive_job(self.job, effects, self, lambda: now)

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        """Perform one effect (EffectHandler)."""
        match effect:
            case SendMessage() | SendAfterSave():
                self._publish(topics.up(self.me.fleet, self.me.device), encode(effect.envelope))
            case StartDownload():
                return self._begin_download(effect.blobs)
            case StopDownload():
                self._end_download()
            case WriteChunk():
                self._parts[effect.chunk.digest][effect.chunk.index] = self._chunks.same(effect.chunk)
            case StartTraining() | MaskUpdate():
                return [self._compute(effect)]
            case SpoolUpdate() | SaveMasking() | SaveBase() | ForgetMasking():
                pass  # no disk, and the update is in memory
            case SendChunk() if self._update is not None:
                manifest, blob = self._update
                chunk = cut(blob, manifest, effect.index)
                topic = topics.update_chunk(self.me.fleet, self.me.device, chunk.digest, chunk.index)
                self._publish(topic, encode_chunk(chunk))
            case DropHeldModel():
                self._held = ""
            case EndJob():
                self._tally.outcomes[effect.outcome.partition(":")[0]] += 1
                self._end_download()
                self._update = None
        return []

    def _begin_download(self, blobs: Sequence[Manifest]) -> list[JobEvent]:
        self._end_download()
        self._parts = {blob.digest: {} for blob in blobs}
        if self._fetcher is not None:
            self._fetch = self._fetcher.begin(blobs, dict.fromkeys(self._parts, ()))
        if self._fetch is None:
            self.link.subscribe(*self._filters())
        return [DownloadStarted({}, by_url=self._fetch is not None)]

    def _on_fetch(self, event: FetchEvent) -> list[JobEvent]:
        if isinstance(event, ChunkFetched):
            event.fetch.taken()
        if event.fetch is not self._fetch:
            return []
        if isinstance(event, ChunkFetched):
            self._tally.fetched_bytes += len(event.chunk.data)
            return [ChunkReceived(event.chunk)]
        if not event.problem:
            return []
        self._fetch = None
        self.link.subscribe(*self._filters())
        return [DownloadByBroker()]

    def _end_download(self) -> None:
        if self._fetch is not None:
            self._fetch.stop()
            self._fetch = None
        self.link.unsubscribe(*self._filters())
        self._parts = {}

    def _filters(self) -> list[str]:
        return [topics.model_chunks_filter(self.me.fleet, digest) for digest in self._parts]

    def _compute(self, effect: StartTraining | MaskUpdate) -> JobEvent:
        return self._train(effect) if isinstance(effect, StartTraining) else self._mask(effect)

    def _train(self, effect: StartTraining) -> JobEvent:
        blobs = {digest: b"".join(parts[index] for index in sorted(parts)) for digest, parts in self._parts.items()}
        self._tally.downloads_s.append(effect.download_s)
        self._end_download()
        if any(hashlib.sha256(blob).hexdigest() != digest for digest, blob in blobs.items()):
            return DownloadDamaged()
        request = effect.request
        if request.evaluates:
            return ModelEvaluated(effect.key, self._updates.evaluation(request))
        if request.secure is not None:
            self._held = request.model.digest if request.deltas or is_delta(request.model.encoding) else ""
            self._vector = self._updates.vector(request, effect.plan, blobs, effect.key.round)
            return VectorTrained(effect.key)
        self._update = self._updates.make(request, effect.plan, blobs, effect.key.round)
        self._held = request.model.digest if request.deltas or is_delta(request.encoding) else ""
        return UpdateTrained(effect.key, self._update[0])

    def _mask(self, effect: MaskUpdate) -> JobEvent:
        request = effect.request
        blob = mask_blob(self._vector, effect.context, effect.masks, bits=request.secure.bits if request.secure else 8)
        manifest = describe(
            blob,
            chunk_bytes=request.chunk_bytes,
            encoding=request.encoding,
            raw_bytes=len(blob),
            schema=self._updates.travelling(request).digest,
        )
        self._update = manifest, blob
        return UpdateTrained(effect.key, manifest)
