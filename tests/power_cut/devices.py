"""A device in one process: the real job, effect runner, stores and LocalUpdate, of a small task, with a fake link."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_events import ChunkReceived, JobEvent, MessageReceived, UpdateTrained
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import Ready, TrainCommand
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.usage import Usage, UsageFile
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, ModelCache
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore
from fedpatch.device_agent.state.status_file import lock_state_dir
from fedpatch.device_agent.state.update_spool import UpdateSpool
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.tensors.arrays import Tensors
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Committed, Envelope, Offer, Refused, TaskCapability, WorkRequest
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.device_agent.device_rounds import SGD, Scene
from tests.device_agent.effect_runners import performer_of
from tests.device_agent.exported_models import RUN, describe
from tests.device_agent.fake_link import Wire
from tests.device_agent.jobs import requested
from tests.device_agent.toy_tasks import TOY, random_data

ENCODING = "delta-int8"
CHUNK_BYTES = 512


def scene() -> Scene:
    """Task, plan and policy; the folder is not used."""
    return Scene(Path(tempfile.gettempdir()), TOY, SGD, "affine")


def patch_key() -> PatchKey:
    """The key of the only patch."""
    return PatchKey(TOY.name, scene().model.digest, "affine")


def digest_of(values: Tensors) -> str:
    parts = [(name, array.tobytes()) for name, array in sorted(values.items())]
    return hashlib.sha256(msgpack.packb(parts)).hexdigest()


def kept(state: Path, round_number: int) -> dict[str, str]:
    """Patch after round `round_number`, as the next round loads it."""
    patch = PatchStore(state / "patches").load(patch_key(), RUN, round_number + 1)
    return {"patch": digest_of(patch.values), "batches": str(patch.batches_done)}


def _limits(state: Path) -> OwnerLimits:
    """Limits of an owner who has set none, for the model of the scene."""
    limits = OwnerLimits(state / "patches", private="", max_steps=1000, max_epochs=100)
    model = scene().model
    limits.take(Ready(TOY.name, model.digest, 20, model.specs))
    return limits


class MarkedWire(Wire):
    """Calls `offered` when an update is offered to the coordinator."""

    def __init__(self, offered: Callable[[Envelope], None]) -> None:
        super().__init__()
        self._offered = offered

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        if topic == topics.up("lab", "pi") and isinstance(decode(payload).body, Offer):
            self._offered(decode(payload))
        return super().publish(topic, payload, qos=qos, retain=retain)


class _Training:
    """Replaces the training process: trains on command, and keeps the answer."""

    def __init__(self, local_update: LocalUpdate) -> None:
        self._local_update = local_update
        self.answer: Any = None

    def train(self, command: TrainCommand) -> None:
        self.answer = command.key, self._local_update.run(command, lambda done, total: None, lambda: False)


class DeviceStory:
    """Device `pi` of fleet `lab`, with all it keeps in `state`."""

    def __init__(self, state: Path, mark: Callable[..., None]) -> None:
        self._state, self._mark = state, mark
        self._lock = lock_state_dir(state)
        self._usage = UsageFile(state)
        self._models = ModelStore(state / MODELS_DIRECTORY, 2)
        data = random_data("pi", 20)
        local_update = LocalUpdate(
            LocalTrainer(TOY, data), PatchStore(state / "patches"), "pi", held=ModelCache(state / HELD_DIRECTORY)
        )
        self._training = _Training(local_update)
        self._tasks = (TaskCapability(TOY.name, scene().model.digest, 20),)
        self._job = Job(max_blob_bytes=2**20)
        self.wire = MarkedWire(self._offered)
        self.performer = performer_of(state, self.wire, self._training, limits=_limits(state), models=self._models)
        self._take(self.performer.take_up_spooled())

    def _take(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            self._perform(self._job.handle(event, 0.0))

    def _perform(self, effects: Sequence[Effect]) -> None:
        drive_job(self._job, effects, self.performer, lambda: 0.0)

    def round(self, number: int, *, committed: bool) -> None:
        """Run a round from the request to `committed`, or to a refusal."""
        packed = pack(scene().initial(), scene().public, {}, "fp32+zstd")
        manifest = packed.manifest(CHUNK_BYTES, scene().public)
        request = WorkRequest(scene().model.digest, "affine", SGD, manifest, ENCODING, CHUNK_BYTES, 300.0)

        def marks(body: Any) -> Envelope:
            return Envelope(body, task=TOY.name, run=RUN, epoch=1, round=number)

        self._perform(self._job.handle(requested(marks(request), self._tasks), 0.0))
        for index in range(manifest.chunk_count):
            self._perform(self._job.handle(ChunkReceived(cut(packed.blob, manifest, index)), 0.0))
        key, (update, _) = self._training.answer
        content = f"model of round {number}".encode() * 100
        self._models.stage(content, describe(number, content))
        self._perform(self._job.handle(UpdateTrained(key, update), 0.0))
        self._mark("settled", round=number)
        answer = Committed(update.digest) if committed else Refused(update.digest, RefuseReason.LATE, "")
        self._perform(self._job.handle(MessageReceived(marks(answer)), 0.0))
        if committed:
            self._mark("published", round=number)
        self._usage.note(Usage(1, 1000, 1.0))
        self._mark("spent", rounds=number)

    def _offered(self, envelope: Envelope) -> None:
        offer = envelope.body
        assert isinstance(offer, Offer)
        digest = offer.manifest.digest
        self._mark("offered", round=envelope.round, digest=digest, **kept(self._state, envelope.round))


def spooled(state: Path) -> tuple[int, str] | None:
    """Round and digest of the update that waits."""
    waiting = UpdateSpool(state / "spool").load()
    return (waiting.key.round, waiting.manifest.digest) if waiting else None
