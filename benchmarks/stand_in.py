"""What stands in for the training of all devices in a process: the update is the global model with a little noise."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from shared.compression import pack, unpack
from shared.messages import Manifest, UpdateReport, WorkRequest
from shared.model import schema_of
from shared.patches import parse_policy
from shared.task import Task
from shared.tensors import Array, Schema
from shared.transfer import Chunk, cut, describe, encode_chunk

NOISE = 0.01
EXAMPLES = 600


class StandIn:
    """Keeps one model and one update at a time, with the update's chunks as they travel."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.schema: Schema = schema_of(task.build_model())
        self._noise: dict[str, Array] = {}
        self._parts: dict[int, bytes] = {}
        self._parts_of = ""
        self._update: Manifest | None = None
        self._update_of: WorkRequest | None = None
        self._chunks: list[bytes] = []

    def keep(self, chunk: Chunk) -> None:
        """A chunk of a global model; whichever device gets it first brings it for all."""
        if chunk.digest != self._parts_of:
            self._parts_of, self._parts = chunk.digest, {}
        self._parts.setdefault(chunk.index, chunk.data)

    def train(self, request: WorkRequest) -> Manifest:
        """The update that answers to a request, whose model is here."""
        if self._update is None or self._update_of is None or self._update_of.model != request.model:
            self._update, self._update_of = self._pack(request), request
        return self._update

    def chunk(self, update: Manifest, index: int) -> bytes:
        """A chunk of the present update as it travels; nothing of one that is over."""
        return self._chunks[index] if update == self._update else b""

    def _pack(self, request: WorkRequest) -> Manifest:
        public = parse_policy(request.private).public(self.schema.with_moments(request.plan.moments))
        blob = b"".join(self._parts[index] for index in range(request.model.chunk_count))
        known = {"encoding": request.model.encoding, "raw_bytes": request.model.raw_bytes}
        _, model = unpack(blob, **known, schema=public)  # type: ignore[arg-type]
        report = UpdateReport(request.model.digest, EXAMPLES, 1, 0.5, 0.5, 0.5, 0.0, 0.0)
        packed = pack(self._changed(model, public), public, asdict(report), request.encoding)
        manifest = describe(
            packed.blob,
            chunk_bytes=request.chunk_bytes,
            encoding=packed.encoding,
            raw_bytes=packed.raw_bytes,
            schema=public.digest,
        )
        self._chunks = [encode_chunk(cut(packed.blob, manifest, index)) for index in range(manifest.chunk_count)]
        return manifest

    def _changed(self, model: dict[str, Array], public: Schema) -> dict[str, Array]:
        """Weights with noise, drawn once; all else as it came, so that it stays within what it can be."""
        rng = np.random.default_rng(0)
        for spec in public.specs:
            if spec.trainable and spec.name not in self._noise:
                self._noise[spec.name] = NOISE * rng.standard_normal(spec.shape, np.float32)
        return {name: tensor + self._noise[name] if name in self._noise else tensor for name, tensor in model.items()}
