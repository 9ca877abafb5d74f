"""A device that takes part in rounds correctly, and then uploads a forbidden update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut, decode_chunk, describe, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    Accept,
    Body,
    Committed,
    DeviceState,
    Envelope,
    Grant,
    Manifest,
    Offer,
    Refused,
    TaskCapability,
    UpdateReport,
    WorkRequest,
    is_delta,
)
from tests.support.brokers import Client

NUM_EXAMPLES = 1000
PATIENCE_S = 60.0
AS_IS = "fp32+zstd"
"""Also the container of a delta encoding without steps: each tensor may be sent unchanged."""


@dataclass(frozen=True)
class Upload:
    """The bytes of an upload, and their manifest."""

    manifest: Manifest
    blob: bytes


@dataclass(frozen=True)
class Update:
    """The content of an upload. The rogue gets it as a valid update: the unchanged global model."""

    tensors: Mapping[str, Array]
    schema: Schema
    report: UpdateReport
    request: WorkRequest

    def with_tensor(self, name: str, values: Array) -> Update:
        """Return the update with one more tensor, or with one replaced, of any shape."""
        role = self.schema.spec(name).role if name in self.schema else "moment" if ":" in name else "buffer"
        others = tuple(spec for spec in self.schema.specs if spec.name != name)
        schema = Schema((*others, TensorSpec(name, values.shape, values.dtype.name, role)))
        return replace(self, tensors={**self.tensors, name: values}, schema=schema)

    def without_tensor(self, name: str) -> Update:
        names = set(self.schema.names) - {name}
        return replace(self, tensors={one: self.tensors[one] for one in names}, schema=self.schema.subset(names))

    def upload(self, encoding: str = "") -> Upload:
        """Return the packed update, with the agreed encoding in its manifest; a delta encoding gets each tensor unchanged."""
        agreed = self.request.encoding
        packed = pack(
            self.tensors, self.schema, asdict(self.report), encoding or (AS_IS if is_delta(agreed) else agreed)
        )
        announced, schema = encoding or agreed, self.request.model.schema
        return Upload(self._describe(packed.blob, announced, packed.raw_bytes, schema), packed.blob)

    def instead(self, blob: bytes, raw_bytes: int) -> Upload:
        """Return other bytes, with a manifest that is correct except for their content."""
        return Upload(self._describe(blob, self.request.encoding, raw_bytes, self.request.model.schema), blob)

    def _describe(self, blob: bytes, encoding: str, raw_bytes: int, schema: str) -> Manifest:
        chunk_bytes = self.request.chunk_bytes
        return describe(blob, chunk_bytes=chunk_bytes, encoding=encoding, raw_bytes=raw_bytes, schema=schema)


Misdeed = Callable[[Update], Upload]


@dataclass(frozen=True)
class Verdict:
    """The digest of the rogue's upload in a round, and the answer to it."""

    digest: str
    answer: Refused | Committed


class Rogue:
    """Acts as `device` of `fleet` through the given client. `model` and `travelling` are the task's schemas."""

    def __init__(self, client: Client, fleet: str, device: str, task: str, model: Schema, travelling: Schema) -> None:
        self._client = client
        self._fleet = fleet
        self._device = device
        self._task = task
        self._model = model
        self._travelling = travelling
        client.link.subscribe(*topics.device_filters(fleet, device))
        client.settle()

    def appear(self) -> None:
        """Publish presence and capabilities."""
        capability = TaskCapability(self._task, self._model.digest, NUM_EXAMPLES)
        state = DeviceState(online=True, boot="1", tasks=(capability,), encodings=ENCODINGS)
        topic = topics.device_state(self._fleet, self._device)
        self._client.link.publish(topic, encode(Envelope(state)), retain=True)

    def leave(self) -> None:
        topic = topics.device_state(self._fleet, self._device)
        self._client.link.publish(topic, encode(Envelope(DeviceState(online=False, boot="1"))), retain=True)

    def publish(self, payload: bytes) -> None:
        self._client.link.publish(topics.up(self._fleet, self._device), payload)

    def send_as_chunk(self, payload: bytes) -> None:
        """Publish any bytes on a topic for chunks of updates."""
        topic = topics.update_chunk(self._fleet, self._device, hashlib.sha256(payload).hexdigest(), 0)
        self._client.link.publish(topic, payload)

    def play(self, misdeeds: Sequence[Misdeed]) -> list[Verdict]:
        """Commit one misdeed in each round that invites the device; return the answers."""
        verdicts: list[Verdict] = []
        last_round = 0
        for misdeed in misdeeds:
            asked, request = self._wait_request(last_round)
            last_round = asked.round
            self._reply(asked, Accept(NUM_EXAMPLES))
            upload = misdeed(self._update(request))
            verdicts.append(Verdict(upload.manifest.digest, self._answer(asked, upload)))
        return verdicts

    def _update(self, request: WorkRequest) -> Update:
        blob = self._download(request.model)
        _, tensors = unpack(
            blob, encoding=request.model.encoding, raw_bytes=request.model.raw_bytes, schema=self._travelling
        )
        report = UpdateReport(request.model.digest, NUM_EXAMPLES, 1, 1.0, 0.5, 0.5, 0.0, 0.0)
        return Update(tensors, self._travelling, report, request)

    def _download(self, manifest: Manifest) -> bytes:
        chunks_filter = topics.model_chunks_filter(self._fleet, manifest.digest)
        self._client.link.subscribe(chunks_filter)
        chunks: dict[int, bytes] = {}
        while len(chunks) < manifest.chunk_count:
            event = self._client.wait(Received, lambda event: manifest.digest in event.topic, PATIENCE_S)
            chunk = decode_chunk(event.payload)
            chunks[chunk.index] = chunk.data
        self._client.link.unsubscribe(chunks_filter)
        return b"".join(chunks[index] for index in sorted(chunks))

    def _answer(self, asked: Envelope, upload: Upload) -> Refused | Committed:
        self._reply(asked, Offer(upload.manifest))
        while True:
            match self._wait_message(lambda envelope: envelope.round == asked.round).body:
                case Grant():
                    self._send(upload)
                case Refused() | Committed() as answer:
                    return answer

    def _send(self, upload: Upload) -> None:
        for index in range(upload.manifest.chunk_count):
            chunk = cut(upload.blob, upload.manifest, index)
            topic = topics.update_chunk(self._fleet, self._device, chunk.digest, chunk.index)
            self._client.link.publish(topic, encode_chunk(chunk))

    def _wait_request(self, after_round: int) -> tuple[Envelope, WorkRequest]:
        while True:
            envelope = self._wait_message(lambda envelope: envelope.round > after_round)
            if isinstance(envelope.body, WorkRequest):
                return envelope, envelope.body

    def _wait_message(self, fits: Callable[[Envelope], bool]) -> Envelope:
        """Wait for the coordinator's next message to this device that `fits`, and return it."""
        down = topics.down(self._fleet, self._device)
        event = self._client.wait(
            Received, lambda event: event.topic == down and fits(decode(event.payload)), PATIENCE_S
        )
        return decode(event.payload)

    def _reply(self, asked: Envelope, body: Body) -> None:
        self.publish(encode(replace(asked, body=body)))
