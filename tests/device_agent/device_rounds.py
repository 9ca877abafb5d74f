"""One round of a device: a global model in a file, a command to train it, and an update in another file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import Downloaded, TrainCommand
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import MOMENTS, Array, Schema, Tensors, values_digest
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.patches import PatchPolicy, parse_policy
from fedpatch.shared.wire.messages import Manifest, TrainPlan, is_delta

SGD = TrainPlan("sgd", 0.1, 5, seed=1)
ADAM = TrainPlan("adam", 0.01, 5, moments=MOMENTS, seed=1)
POLICIES = ("none", "stats", "affine", "all", "names:fc2.*")


def key(round: int, epoch: int = 1) -> JobKey:
    """A round of the run."""
    return JobKey("run", epoch, round, "toy")


@dataclass(frozen=True)
class Scene:
    """A task, a plan and a policy; `folder` holds model and update."""

    folder: Path
    task: Task
    plan: TrainPlan
    private: str

    @property
    def policy(self) -> PatchPolicy:
        return parse_policy(self.private)

    @property
    def model(self) -> Schema:
        """Schema of the whole model, without moments."""
        return schema_of(self.task.build_model())

    @property
    def whole(self) -> Schema:
        """Schema of the whole model and its moments."""
        return self.model.with_moments(self.plan.moments)

    @property
    def public(self) -> Schema:
        """Schema of the public values."""
        return self.policy.public(self.whole)

    def initial(self) -> dict[str, Array]:
        """The first global model, moments zero."""
        zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.public.specs}
        initial = initial_tensors(self.task, self.plan.seed)
        return {name: initial.get(name, zero) for name, zero in zeros.items()}

    def command(self, tensors: Tensors | None = None, round: int = 1, **changes: Any) -> TrainCommand:
        """Publish `tensors`, else the first global model, and ask to train it."""
        model = self.initial() if tensors is None else tensors
        packed = pack(model, self.public, {}, "fp32+zstd")
        (self.folder / "model").write_bytes(packed.blob)
        digest, size = hashlib.sha256(packed.blob).hexdigest(), len(packed.blob)
        fields: dict[str, Any] = {
            "key": key(round),
            "plan": self.plan,
            "private": self.private,
            "schema": self.model.digest,
            "blob": Downloaded(str(self.folder / "model")),
            "model": Manifest(digest, size, 64, -(-size // 64), packed.encoding, packed.raw_bytes, self.public.digest),
            "encoding": "fp32+zstd",
            "base": digest,
            "update_path": str(self.folder / "update"),
            "download_s": 1.5,
            "chunk_bytes": 100,
            "content": values_digest(model, self.public),
        }
        return TrainCommand(**{**fields, **changes})

    def update(self, manifest: Manifest, base: Tensors | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
        """The update that the device wrote, decoded with `base` or else the first global model: (meta, tensors)."""
        blob = (self.folder / "update").read_bytes()
        known = self.initial() if base is None else base
        return unpack(blob, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=self.public, base=known)


def raw_update(path: Path, encoding: str) -> bytes:
    """Every byte of an update, decompressed."""
    blob = path.read_bytes()
    compressed = encoding.endswith("+zstd") or is_delta(encoding)
    return zstandard.ZstdDecompressor().decompress(blob) if compressed else blob


def traces(array: Array) -> list[bytes]:
    """Bytes that would reveal a float tensor of two values or more: each two neighbours in single, each four in half."""
    flat = array.ravel()
    if flat.dtype.kind != "f" or flat.size < 2:
        return []
    halves = flat.astype(np.float16)
    singles = [flat[i : i + 2].tobytes() for i in range(flat.size - 1)]
    return singles + [halves[i : i + 4].tobytes() for i in range(flat.size - 3)]
