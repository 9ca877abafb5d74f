"""The training process of a world: real files, written in the order of device_agent.training.local_update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import (
    MaskCommand,
    Masked,
    Ready,
    TrainCancelled,
    TrainCommand,
    Trained,
    TrainFailed,
    TrainProgress,
)
from fedpatch.device_agent.policy.private_floor import PrivateFloor
from fedpatch.device_agent.runtime.training_supervisor import Died, TrainerEvent
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, ModelCache
from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore
from fedpatch.device_agent.training.batches import update_seed
from fedpatch.device_agent.training.global_model import read_global_model
from fedpatch.device_agent.training.masked_update import mask_update, unmasked_blob
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import FedpatchError, StateError
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import Manifest, UpdateReport
from fedpatch.shared.wire.reason_codes import FailReason
from tests.faults.simulated.lesson import FIRST_PATCH, POLICY, PUBLIC, SCHEMA, examples, learned
from tests.faults.simulated.processes import Killed, Process

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

PIPE_S = 0.002
SET_UP_S = (0.5, 3.0)


class _Lesson:
    """A command to train, and its results so far."""

    def __init__(self, command: TrainCommand) -> None:
        self.command = command
        self.cancelled = False
        self.record: PatchRecord | None = None
        self.model: dict[str, Array] = {}
        self.update: dict[str, Array] = {}


class SimulatedTrainer:
    """The training process of a device: it is kept, can be killed, and is started again when it is needed."""

    def __init__(self, world: World, device: str, patches: Path, events: Callable[[TrainerEvent], None]) -> None:
        self._world, self._device, self._patches, self._events = world, device, patches, events
        self._held = ModelCache(patches.parent / HELD_DIRECTORY)
        self._process: Process | None = None
        self._store: PatchStore | None = None
        self._lessons: list[_Lesson] = []
        self._masking: list[MaskCommand] = []

    # ---- for the agent

    def start(self) -> None:
        """Start the process, unless there is one."""
        if self._process is None:
            self._process = Process(f"{self._device}'s training", self._world.now)
            self._later(self._world.rng.uniform(*SET_UP_S), self._set_up)

    def train(self, command: TrainCommand) -> None:
        self.start()
        self._lessons.append(_Lesson(command))
        if len(self._lessons) == 1 and self._store is not None:
            self._later(PIPE_S, self._begin)

    def mask(self, command: MaskCommand) -> None:
        """Mask a vector that is on the disk."""
        self.start()
        self._masking.append(command)
        if self._store is not None:
            self._later(PIPE_S, self._mask)

    def cancel(self) -> None:
        """Cancel the last command to train."""
        if self._lessons:
            self._lessons[-1].cancelled = True

    # ---- faults

    def kill(self, *, notify: bool = True) -> None:
        """Kill the process at once; with `notify` the agent is notified."""
        process, self._process, self._store = self._process, None, None
        owed = (*(one.command.key for one in self._lessons), *(one.key for one in self._masking))
        self._lessons, self._masking = [], []
        if process is not None:
            process.dead = True
            if notify:
                self._world.agenda.after(PIPE_S, partial(self._events, Died("killed", owed)))

    @property
    def process(self) -> Process | None:
        """Return the process, or None while there is none."""
        return self._process

    # ---- its life

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._world.agenda.after(delay_s, partial(self._in_turn, self._process, action))

    def _in_turn(self, process: Process | None, action: Callable[[], None]) -> None:
        if process is None or process is not self._process:
            return
        try:
            with self._world.turns.of(process):
                action()
        except Killed:
            self._world.note(f"{process.name} was killed at a write")
            self.kill()
        except FedpatchError as error:
            lesson = self._lessons[0]
            self._answer(TrainFailed(lesson.command.key, _reason(error), str(error)))
            self._next()

    def _mask(self) -> None:
        """Mask the requested vectors."""
        while self._masking:
            command = self._masking.pop(0)
            try:
                self._answer(Masked(command.key, mask_update(command)))
            except FedpatchError as error:
                self._answer(TrainFailed(command.key, FailReason.MASKING, str(error)))

    def _answer(self, event: TrainerEvent) -> None:
        self._world.agenda.after(PIPE_S, partial(self._deliver, self._process, event))

    def _deliver(self, process: Process | None, event: TrainerEvent) -> None:
        self._events(event)

    def _set_up(self) -> None:
        self._store = PatchStore(self._patches)
        self._held.tidy()
        self._answer(Ready("digits", SCHEMA.digest, examples(self._device), SCHEMA.specs))
        if self._lessons:
            self._begin()
        self._mask()

    def _next(self) -> None:
        self._lessons.pop(0)
        if self._lessons:
            self._later(PIPE_S, self._begin)

    def _begin(self) -> None:
        """Load patch and model, and compute the training at once; its virtual time passes afterwards."""
        assert self._store is not None
        lesson = self._lessons[0]
        command = lesson.command
        key = PatchKey("digits", SCHEMA.digest, str(POLICY))
        before = self._store.load(key, command.key.run, command.key.round)
        lesson.model = read_global_model(command, PUBLIC, self._held)
        if command.held:
            self._world.note(f"{self._device} comes to its model by {len(command.steps)} steps from what it holds")
        values = before.values or FIRST_PATCH
        lesson.update, patch = learned(lesson.model, values, self._device, command.key.round)
        after = PatchState(patch, before.batches_done + 1)
        lesson.record = PatchRecord(key, command.key.run, command.key.round, before, after)
        seconds = self._world.rng.uniform(*self._world.train_s)
        self._later(seconds / 2, partial(self._show, command.key))
        self._later(seconds, self._save)

    def _show(self, key: JobKey) -> None:
        if self._lessons and self._lessons[0].command.key == key and not self._lessons[0].cancelled:
            self._answer(TrainProgress(key, 1, 2))

    def _save(self) -> None:
        assert self._store is not None
        lesson = self._lessons[0]
        assert lesson.record is not None
        if lesson.cancelled:
            self._answer(TrainCancelled(lesson.command.key))
            self._next()
            return
        self._world.oracle.saving(self._device, lesson.command, lesson.record.after)
        PrivateFloor(self._patches, "digits").note(lesson.record.after.values, SCHEMA)
        self._store.save(lesson.record)
        self._later(0.01, self._write)

    def _write(self) -> None:
        lesson = self._lessons[0]
        command = lesson.command
        report = UpdateReport(command.base, examples(self._device), 1, 0.5, 0.5, 0.6, command.download_s, 1.0)
        assert lesson.record is not None
        seed = update_seed(command.plan.seed, self._device, lesson.record.before.batches_done)
        if command.secure is not None:
            blob, manifest = self._vector(lesson, command.secure, report, seed)
        else:
            packed = pack(lesson.update, PUBLIC, asdict(report), command.encoding, base=lesson.model, seed=seed)
            blob, manifest = packed.blob, packed.manifest(command.chunk_bytes, PUBLIC)
        path = Path(command.update_path)
        with refusals_of(path):
            write_atomic(path, blob)
        self._answer(Trained(command.key, manifest, report))
        self._next()

    def _vector(self, lesson: _Lesson, terms: SecureTerms, report: UpdateReport, seed: int) -> tuple[bytes, Manifest]:
        """Return the vector of a masked round."""
        command = lesson.command
        blob = unmasked_blob(
            terms,
            PUBLIC,
            model=lesson.model,
            update=lesson.update,
            report=report,
            metric=MetricTerms(),
            seed=seed,
        )
        self._world.oracle.vectors[self._device, command.key.run, command.key.round] = blob
        return blob, describe(
            blob,
            chunk_bytes=command.chunk_bytes,
            encoding=command.encoding,
            raw_bytes=len(blob),
            schema=PUBLIC.digest,
        )


def _reason(error: FedpatchError) -> FailReason:
    return FailReason.STORAGE if isinstance(error, StateError) else FailReason.DOWNLOAD
