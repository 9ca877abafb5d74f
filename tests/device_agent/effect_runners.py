"""Device `pi` of fleet `lab` without a network: a real effect runner with a fake link and a fake training process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.usage import JobUsage
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.model_fetcher import ModelFetcher
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.shared.wire.messages import Body
from tests.device_agent.fake_link import Wire
from tests.device_agent.owners import limits_of


def performer_of(
    directory: Path,
    wire: Wire,
    trainer: Any,
    *,
    limits: OwnerLimits | None = None,
    models: ModelStore | None = None,
    fetcher: ModelFetcher | None = None,
    usage: JobUsage | None = None,
) -> EffectRunner:
    """The effect runner of the device in `directory`; by default, limits are those of tests.device_agent.owners."""
    return EffectRunner(
        Identity("lab", "pi", "b1"),
        link=wire,
        trainer=trainer,
        usage=usage or JobUsage(),
        limits=limits or limits_of(directory),
        directory=directory,
        models=models,
        fetcher=fetcher,
    )


class PlayedDevice:
    """A job, its effect runner and their directory."""

    def __init__(
        self,
        directory: Path,
        trainer: Any,
        *,
        max_blob_bytes: int = 10_000,
        models: ModelStore | None = None,
        fetcher: ModelFetcher | None = None,
    ) -> None:
        self.directory, self.trainer = directory, trainer
        self.wire = Wire()
        self.job = Job(max_blob_bytes=max_blob_bytes)
        self.usage = JobUsage()
        self.performer = performer_of(directory, self.wire, trainer, models=models, fetcher=fetcher, usage=self.usage)

    def perform(self, effects: list[Effect]) -> list[Body]:
        before = len(self.wire.up)
        drive_job(self.job, effects, self.performer, lambda: 0.0)
        return self.wire.up[before:]

    def take_up_spooled(self) -> None:
        """Restore the waiting update, as after a restart."""
        for event in self.performer.take_up_spooled():
            self.job.handle(event, 0.0)

    def model_made(self) -> None:
        """The training process reports that the personal model is made."""
        for event in self.performer.model_made():
            self.perform(self.job.handle(event, 0.0))
