"""Device `pi` of fleet `lab` without a network: a real performer, whose link and training process are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from device_agent.effects import Effect
from device_agent.job import Job
from device_agent.meter import Meter
from device_agent.model_store import ModelStore
from device_agent.owner_limits import OwnerLimits
from device_agent.performing import Identity, Performer
from shared.messages import Body
from tests.device_agent.owners import limits_of
from tests.device_agent.wire import Wire


def performer_of(
    directory: Path,
    job: Job,
    wire: Wire,
    trainer: Any,
    *,
    limits: OwnerLimits | None = None,
    models: ModelStore | None = None,
) -> Performer:
    """The hands of the device, which works in `directory`; unless given, limits are those of tests.device_agent.owners."""
    return Performer(
        Identity("lab", "pi", "b1"),
        job,
        link=wire,
        trainer=trainer,
        meter=Meter(),
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
