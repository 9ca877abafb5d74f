"""Training processes that a fork server starts: same updates and same exits as without it."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.demo.devices import serve_forks
from fedpatch.device_agent.job.training_messages import Ready, Trained
from fedpatch.device_agent.runtime.training_launch import launch_through, start_program
from fedpatch.device_agent.runtime.training_supervisor import Died
from tests.device_agent.device_rounds import ADAM, Scene, key
from tests.device_agent.toy_tasks import SLOW
from tests.device_agent.watched_training_process import TIMEOUT_S, Watched


@pytest.fixture(scope="module")
def fork_server(installed, tmp_path_factory):
    with serve_forks(tmp_path_factory.mktemp("server")) as path:
        yield path


@pytest.fixture
def start(installed, tmp_path):
    """Start a training process through a fork server, which may be absent."""
    started: list[Watched] = []

    def start(fork_server) -> Watched:
        watched = Watched(tmp_path / str(len(started)), launch=launch_through(fork_server))
        started.append(watched)
        watched.trainer.start()
        return watched

    yield start
    for watched in started:
        watched.trainer.stop()


def has_ended(pid: int) -> bool:
    give_up_at = time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.medium
def test_forked_process_and_the_program_in_place_of_an_absent_server_publish_equal_updates(
    start, fork_server, tmp_path
):
    scene, updates = Scene(tmp_path, SLOW, ADAM, "none"), []
    for server in (fork_server, tmp_path / "no-server"):
        watched = start(server)
        watched.trainer.train(scene.command())
        trained = watched.outcome()
        assert isinstance(trained, Trained)
        _, update = scene.update(trained.manifest)  # only the tensors: the meta have the duration
        updates.append({name: value.tobytes() for name, value in update.items()})
    assert updates[0] == updates[1]


def test_killed_forked_process_loses_its_round_and_is_replaced(start, fork_server, tmp_path):
    watched = start(fork_server)
    scene = Scene(tmp_path, SLOW, ADAM, "none")
    watched.trainer.train(replace(scene, plan=replace(ADAM, steps=100_000)).command(round=21))
    watched.until_training()
    os.kill(watched.trainer.pid, signal.SIGKILL)
    died = watched.outcome()
    assert isinstance(died, Died) and died.killed and "SIGKILL" in died.detail
    assert died.lost == (key(21),)
    watched.trainer.train(scene.command(round=21))
    assert isinstance(watched.next(), Ready)
    assert isinstance(watched.outcome(), Trained)


def test_stopped_trainer_ends_its_forked_process(start, fork_server):
    watched = start(fork_server)
    assert isinstance(watched.next(), Ready)
    pid = watched.trainer.pid
    watched.trainer.stop()
    assert has_ended(pid)


def test_exit_code_of_forked_process_reaches_the_supervisor(start, fork_server, tmp_path):
    watched = Watched(tmp_path, "no_such_module:TASK", launch=launch_through(fork_server))
    watched.trainer.start()
    assert "no_such_module" in watched.outcome().detail
    watched.trainer.stop()


def test_training_process_that_begins_leaves_ctrl_c_to_the_agent(installed):
    process = start_program()
    os.kill(process.pid, signal.SIGINT)
    process.stdin.close()
    assert (process.wait(TIMEOUT_S), process.stderr.read()) == (0, b"")
    process.stdout.close()
    process.stderr.close()


@pytest.mark.medium
def test_programs_of_a_task_start_with_no_signal_blocked(installed):
    process = start_program()
    give_up_at = time.monotonic() + TIMEOUT_S
    while signal_mask(process.pid):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    process.stdin.close()
    process.wait(TIMEOUT_S)
    process.stdout.close()
    process.stderr.close()


def signal_mask(pid: int) -> int:
    """Return the set of signals that a process blocks; a program that it starts inherits this set."""
    [mask] = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return int(mask, 16)


def test_start_of_a_training_process_leaves_the_signals_of_the_agent_as_they_are(installed):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    process = start_program()
    process.kill()
    process.wait(TIMEOUT_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.medium
def test_fork_server_that_failed_starts_the_program(start, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, ExitStack() as stack:
        patched.setattr("fedpatch.coordinator.demo.devices.sys.executable", "/bin/false")
        path = stack.enter_context(serve_forks(tmp_path))
        patched.undo()
        assert isinstance(start(path).next(), Ready)
