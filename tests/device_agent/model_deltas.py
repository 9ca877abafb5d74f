"""A global model that changes from version to version in small steps, as files and manifests of a scene's folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpatch.device_agent.job.training_messages import Downloaded, ModelStep, TrainCommand
from fedpatch.device_agent.state.model_cache import Held, ModelCache
from fedpatch.shared.tensors.arrays import Array, values_digest
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.messages import Manifest, ModelDelta
from tests.device_agent.device_rounds import Scene


@dataclass
class Versions:
    """`count` versions; each is the coordinator's model after its step was rounded, bit by bit as devices hold it."""

    scene: Scene
    encoding: str = "delta-int8"
    count: int = 4
    tensors: list[dict[str, Array]] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    steps: list[ModelStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._publish(self.scene.initial())
        rng = np.random.default_rng(7)
        for number in range(1, self.count):
            before = self.tensors[-1]
            moved = {
                name: (value + np.abs(rng.normal(0, 0.01, value.shape))).astype(value.dtype)
                for name, value in before.items()
            }
            packed = pack(moved, self.scene.public, {}, self.encoding, base=before, seed=number)
            path = self.scene.folder / f"step-{number}"
            path.write_bytes(packed.blob)
            _, after = unpack(
                packed.blob,
                encoding=packed.encoding,
                raw_bytes=packed.raw_bytes,
                schema=self.scene.public,
                base=before,
            )
            step, content = packed.manifest(64, self.scene.public), self.content(after)
            self.steps.append(ModelStep(Downloaded(str(path)), ModelDelta(self.manifests[-1].digest, content, step)))
            self._publish(after)

    def content(self, tensors: dict[str, Array]) -> str:
        """Digest of a version's values."""
        return values_digest(tensors, self.scene.public)

    def command(self, begins: int | None = None, to: int = -1, **changes: Any) -> TrainCommand:
        """A command to train version `to`, by steps from version `begins`, or from the whole model if it is None."""
        last = to % self.count
        manifest = self.manifests[last]
        whole = {
            "blob": Downloaded(str(self.scene.folder / f"version-{last}")),
            "model": manifest,
            "base": manifest.digest,
        }
        if begins is not None:
            steps = tuple(self.steps[begins:last])
            whole |= {"blob": None, "held": self.manifests[begins].digest, "steps": steps}
        content = self.content(self.tensors[last])
        return self.scene.command(**{"hold": True, "content": content, **whole, **changes})

    def lie(self, tensors: dict[str, Array], begins: int) -> TrainCommand:
        """A command for the last version, whose only step from version `begins` leads to other tensors and names these."""
        base = self.tensors[begins]
        packed = pack(tensors, self.scene.public, {}, self.encoding, base=base, seed=1)
        path = self.scene.folder / "lie"
        path.write_bytes(packed.blob)
        _, after = unpack(
            packed.blob, encoding=packed.encoding, raw_bytes=packed.raw_bytes, schema=self.scene.public, base=base
        )
        tensors.update(after)
        delta = ModelDelta(self.manifests[begins].digest, self.content(after), packed.manifest(64, self.scene.public))
        return replace(self.command(begins), steps=(ModelStep(Downloaded(str(path)), delta),))

    def hold(self, store: ModelCache, number: int, tensors: dict[str, Array] | None = None) -> None:
        """Hold a version, with its own values or others."""
        packed = pack(tensors or self.tensors[number], self.scene.public, {}, "fp32")
        held = Held(self.manifests[number].digest, self.scene.public.digest, packed.encoding, packed.raw_bytes)
        store.write(held, packed.blob)

    def _publish(self, tensors: dict[str, Array]) -> None:
        packed = pack(tensors, self.scene.public, {}, "fp32+zstd")
        (self.scene.folder / f"version-{len(self.tensors)}").write_bytes(packed.blob)
        self.tensors.append(tensors)
        self.manifests.append(packed.manifest(64, self.scene.public))
