"""Housekeeping of the agent's loop: the idle training process, local metrics, and the service manager."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import WorkerSetup
from fedpatch.device_agent.runtime.housekeeping import Housekeeping, IdleTimer, ServiceManager
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


def test_with_zero_it_is_kept():
    idling = IdleTimer(0.0)
    idling.see(idle=True, now=0.0)
    assert idling.next_deadline() is None
    assert not idling.tick(1e9)


@given(
    release_s=st.floats(0.1, 1000.0),
    turns=st.lists(st.tuples(st.floats(0.0, 500.0), st.booleans()), max_size=30),
)
def test_memory_is_never_released_within_the_time_after_work(release_s, turns):
    """For any events: at a release, every look within the last `release_s` found the process idle."""
    idling, now, busy_at, seen_at = IdleTimer(release_s), 0.0, -1.0, None
    for wait_s, idle in turns:
        now += wait_s
        idling.see(idle=idle, now=now)
        if not idle:
            busy_at, seen_at = now, None
        elif seen_at is None:
            seen_at = now
        if idling.tick(now):
            assert idle and seen_at is not None and now >= seen_at + release_s > busy_at
            assert not idling.tick(now + 2 * release_s)
            seen_at = None
        elif idle:
            assert seen_at is not None and now < seen_at + release_s
        assert idling.next_deadline() == (None if seen_at is None else seen_at + release_s)


class Listener:
    """systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listening(request, socket_folder: Path) -> Iterator[tuple[str, Listener]]:
    """An address as in $NOTIFY_SOCKET, and the listener there."""
    name = str(socket_folder / "notify") if request.param == "path" else f"@fedpatch-{os.getpid()}-{socket_folder.name}"
    listener = Listener(name.replace("@", "\0"))
    yield name, listener
    listener.close()


def test_ready_is_sent_once_and_status_at_each_change(listening):
    address, listener = listening
    manager = ServiceManager(address)
    for now, doing in enumerate(["loading", "idle", "idle", "training"]):
        manager.doing(doing, float(now))
        manager.tick(float(now))
    manager.stopping()
    assert listener.received() == [
        "READY=1\nSTATUS=loading",
        "STATUS=idle",
        "STATUS=training",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_watchdog_is_notified_twice_per_interval(listening):
    address, listener = listening
    manager = ServiceManager(address, watchdog_s=60.0)
    assert manager.next_deadline() is None
    manager.doing("idle", 100.0)
    assert manager.next_deadline() == 130.0
    for now in (101.0, 129.9, 130.0, 131.0, 160.0):
        manager.tick(now)
    assert listener.received() == ["READY=1\nSTATUS=idle", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_line_end_in_a_status_is_no_message_of_its_own(listening):
    address, listener = listening
    ServiceManager(address).doing("round 1 of run a\nSTOPPING=1", 0.0)
    assert listener.received() == ["READY=1\nSTATUS=round 1 of run a STOPPING=1"]


def test_the_variables_are_taken_from_the_environment(tmp_path):
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "n"),
        "WATCHDOG_USEC": "4000000",
        "WATCHDOG_PID": str(os.getpid()),
        "X": "",
    }
    manager = ServiceManager.from_environment(environ)
    manager.doing("idle", 0.0)  # no listener there, which is no error
    assert manager.next_deadline() == 2.0
    assert environ == {"X": ""}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "4000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
    ],
    ids=["nothing", "no socket", "another process's", "no number"],
)
def test_without_a_watchdog_of_ours_there_is_nothing_to_wake_for(environ):
    manager = ServiceManager.from_environment(environ)
    manager.doing("idle", 0.0)
    assert manager.next_deadline() is None
