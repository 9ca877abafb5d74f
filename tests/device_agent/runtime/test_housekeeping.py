"""Housekeeping of the agent's loop: the idle training process, local metrics, and the service manager."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import WorkerSetup
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.idle_release import IdleTimer
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_supervisor import Trainer, TrainerEvent
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.telemetry.local_metrics import LocalMetrics
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from tests.device_agent.jobs import downloading, uploading
from tests.device_agent.owners import owner_of
from tests.support.specs import TASK


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    """A trainer whose process stays silent."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    inbox: SimpleQueue[TrainerEvent] = SimpleQueue()
    made = Trainer(WorkerSetup("none", "", "", "", "pi"), inbox.put)
    made.start()
    yield made
    made.stop()


def _idle() -> Job:
    return Job(max_blob_bytes=10_000)


@pytest.mark.parametrize(
    ("job", "task", "ends"),
    [(_idle, TASK, True), (uploading, TASK, True), (downloading, TASK, False), (_idle, "", False)],
    ids=["nothing to do", "uploads", "is about to train", "still loads its task"],
)
def test_a_training_process_ends_after_a_while_without_work(trainer: Trainer, job, task, ends):
    """An upload may take days and trains nothing; a process that still loads its task is not idle."""
    upkeep, job = Housekeeping(trainer, IdleTimer(100.0), ServiceManager()), job()
    upkeep.tick(job, connected=True, task=task, now=0.0)
    assert upkeep.next_deadline() == (100.0 if ends else None)
    upkeep.tick(job, connected=True, task=task, now=99.0)
    assert trainer.pid is not None
    upkeep.tick(job, connected=True, task=task, now=100.0)
    assert (trainer.pid is None) == ends
    assert upkeep.next_deadline() is None


def test_the_owners_file_is_kept_while_the_loop_turns_and_goes_with_it(trainer: Trainer, tmp_path: Path):
    path = tmp_path / "fedpatch.prom"
    settings = AgentSettings(data="shard:0/1", metrics_textfile=path)
    metrics = LocalMetrics(settings, "pi", owner_of(), RoundTimes(), None)
    upkeep = Housekeeping(trainer, IdleTimer(0.0), ServiceManager(), metrics=metrics)
    upkeep.tick(_idle(), connected=True, task=TASK, now=0.0)
    assert "fedpatch_agent_" in path.read_text()
    upkeep.tick(_idle(), connected=False, task=TASK, now=0.1)
    assert upkeep.next_deadline() is not None
    upkeep.stopping()
    assert not path.exists()
