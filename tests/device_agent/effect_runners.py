"""Device `pi` of fleet `lab` without a network: a real performer, whose link and training process are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.job_usage import JobUsage
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.runtime.effect_runner import EffectRunner, Identity
from fedpatch.shared.wire.messages import Body
from tests.device_agent.fake_link import Wire
from tests.device_agent.owners import limits_of


def performer_of(
    directory: Path,
    job: Job,
    wire: Wire,
    trainer: Any,
    *,
    limits: OwnerLimits | None = None,
    models: ModelStore | None = None,
) -> EffectRunner:
    """The hands of the device, which works in `directory`; unless given, limits are those of tests.device_agent.owners."""
    return EffectRunner(
        Identity("lab", "pi", "b1"),
        job,
        link=wire,
        trainer=trainer,
        meter=JobUsage(),
        limits=limits or limits_of(directory),
        directory=directory,
        models=models,
    )


class PlayedDevice:
    """A job, its performer and the directory that it works in."""

    def __init__(
        self, directory: Path, trainer: Any, *, max_blob_bytes: int = 10_000, models: ModelStore | None = None
    ) -> None:
        self.directory, self.trainer = directory, trainer
        self.wire = Wire()
        self.job = Job(max_blob_bytes=max_blob_bytes)
        self.performer = performer_of(directory, self.job, self.wire, trainer, models=models)

    def perform(self, effects: list[Effect]) -> list[Body]:
        """What was said meanwhile."""
        before = len(self.wire.up)
        self.performer.perform(effects)
        return self.wire.up[before:]
