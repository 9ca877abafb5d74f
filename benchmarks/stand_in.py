"""What stands in for the training of all devices in a process: the update is the global model with a little noise."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from device_agent.ways import Way
from shared.compression import pack, unpack
from shared.errors import FedpatchError
from shared.messages import Manifest, UpdateReport, WorkRequest, is_delta
from shared.model import schema_of
from shared.patches import parse_policy
from shared.task import Task
from shared.tensors import Array, Schema
from shared.transfer import Chunk, cut, describe, encode_chunk

NOISE = 0.01
EXAMPLES = 600


class StandIn:
    """Keeps the last global model, and one update with its chunks as they travel."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.schema: Schema = schema_of(task.build_model())
        self._noise: dict[str, Array] = {}
        self._parts: dict[str, dict[int, bytes]] = {}
        self._model: tuple[str, dict[str, Array]] = ("", {})
        self._update: Manifest | None = None
        self._update_of: Manifest | None = None
        self._chunks: list[bytes] = []

    def keep(self, chunk: Chunk) -> None:
        """A chunk of a global model, or of a step to it; whichever device gets it first brings it for all."""
        self._parts.setdefault(chunk.digest, {}).setdefault(chunk.index, chunk.data)

    def train(self, request: WorkRequest, way: Way) -> Manifest:
        """The update that answers to a request; `way` leads to its model, and what that takes is here."""
        if self._update is None or self._update_of != request.model:
            public = parse_policy(request.private).public(self.schema.with_moments(request.plan.moments))
            self._model = request.model.digest, self._arrive(request, way, public)
            self._parts.clear()
            self._update, self._update_of = self._pack(request, public), request.model
        return self._update

    def chunk(self, update: Manifest, index: int) -> bytes:
        """A chunk of the present update as it travels; nothing of one that is over."""
        return self._chunks[index] if update == self._update else b""

    def _arrive(self, request: WorkRequest, way: Way, public: Schema) -> dict[str, Array]:
        version, model = self._model
        if not way.held:
            return self._unpack(request.model, public)
        if way.held != version:
            raise FedpatchError(f"a device holds {way.held[:12]}, and this process {version[:12]}")
        for step in way.steps:
            model = self._unpack(step.manifest, public, model)
        return model

    def _unpack(self, blob: Manifest, public: Schema, base: dict[str, Array] | None = None) -> dict[str, Array]:
        parts = self._parts[blob.digest]
        whole = b"".join(parts[index] for index in range(blob.chunk_count))
        return unpack(whole, encoding=blob.encoding, raw_bytes=blob.raw_bytes, schema=public, base=base)[1]

    def _pack(self, request: WorkRequest, public: Schema) -> Manifest:
        model = self._model[1]
        report = UpdateReport(request.model.digest, EXAMPLES, 1, 0.5, 0.5, 0.5, 0.0, 0.0)
        base = model if is_delta(request.encoding) else None
        packed = pack(self._changed(model, public), public, asdict(report), request.encoding, base=base)
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
