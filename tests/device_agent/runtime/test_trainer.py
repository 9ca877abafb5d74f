"""The agent's side of the training process: start, answers, pause, lost memory, errors."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpatch.device_agent.job.training_messages import (
    Ready,
    SetupFailed,
    TrainCancelled,
    Trained,
    TrainFailed,
    TrainProgress,
    WorkerSetup,
)
from fedpatch.device_agent.runtime.training_supervisor import Died, Trainer
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore
from fedpatch.device_agent.training.training_process import PROGRESS_EVERY_S
from fedpatch.shared.errors import DataError
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.device_rounds import ADAM, POLICIES, SGD, Scene, key, raw_update, traces
from tests.device_agent.toy_tasks import MISHAP, SLOW
from tests.device_agent.watched_training_process import TIMEOUT_S, Watched, until_logged


@pytest.fixture(scope="module")
def watched(installed, tmp_path_factory):
    """One warm process for the whole module."""
    watched = Watched(tmp_path_factory.mktemp("agent"))
    watched.trainer.start()
    yield watched
    watched.trainer.stop()


@pytest.fixture
def fresh(installed, tmp_path):
    """Start separate processes; each is ended after the test."""
    started = []

    def start(task: str, data: str) -> Watched:
        watched = Watched(tmp_path, task, data)
        started.append(watched)
        watched.trainer.start()
        return watched

    yield start
    for watched in started:
        watched.trainer.stop()


@pytest.fixture
def idle(watched):
    """The warm process with no event outstanding."""
    while not watched.events.empty():
        watched.events.get()
    return watched


def patch_values(watched, scene):
    """The patch values that the process saved."""
    key = PatchKey(scene.task.name, scene.model.digest, str(scene.policy))
    return PatchStore(watched.patches).load(key, "another run", 0).values


@pytest.mark.parametrize(
    "private",
    [one if one in ("none", "affine") else pytest.param(one, marks=pytest.mark.slow) for one in POLICIES],
)
def test_a_round_under_each_policy(idle, tmp_path, private):
    """The update has the public tensors, the patch file the private ones, and no private byte leaves."""
    scene = Scene(tmp_path, SLOW, ADAM, private)
    idle.trainer.train(scene.command(encoding="fp16+zstd"))
    trained = idle.outcome()
    assert isinstance(trained, Trained), trained
    assert (trained.key, trained.report.steps) == (key(1), 5)
    assert (trained.report.base, trained.report.num_examples) == (trained.report.base, 23)
    _, update = scene.update(trained.manifest)
    scene.public.check(update)
    patch = patch_values(idle, scene)
    scene.policy.patch(scene.whole).check(patch)
    raw = raw_update(tmp_path / "update", "fp16+zstd")
    for name, value in patch.items():
        assert name.encode() not in raw
        assert not [trace for trace in traces(value) if trace in raw], name


def test_progress_is_reported_at_a_bounded_rate(idle, tmp_path):
    command = Scene(tmp_path, SLOW, replace(SGD, steps=60), "none").command()
    started = time.monotonic()
    idle.trainer.train(command)
    steps = []
    while isinstance(event := idle.next(), TrainProgress | Ready):
        if isinstance(event, TrainProgress):
            steps.append(event.done)
    assert isinstance(event, Trained)
    assert steps[0] == 1 and steps[-1] == 60
    assert steps == sorted(set(steps))
    assert len(steps) <= (time.monotonic() - started) / PROGRESS_EVERY_S + 2


def test_a_cancel_ends_the_round_and_the_next_one_is_trained(idle, tmp_path):
    scene = Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "names:fc1.*")
    idle.trainer.train(scene.command(round=8))
    idle.until_training()
    idle.trainer.cancel()
    idle.trainer.train(replace(scene, plan=SGD).command(round=9))
    assert idle.outcome() == TrainCancelled(key(8))
    trained = idle.outcome()
    assert isinstance(trained, Trained) and trained.key == key(9)
    assert patch_values(idle, scene)


def test_a_cancel_that_comes_too_late_cancels_nothing(idle, tmp_path):
    idle.trainer.cancel()
    idle.trainer.train(Scene(tmp_path, SLOW, SGD, "none").command())
    assert isinstance(idle.outcome(), Trained)


def test_divergence_is_reported_and_saves_nothing(idle, tmp_path):
    scene = Scene(tmp_path, SLOW, SGD, "names:bn.bias")
    tensors = scene.initial()
    tensors["fc2.weight"] = np.full_like(tensors["fc2.weight"], 3e38)
    idle.trainer.train(scene.command(tensors))
    failed = idle.outcome()
    assert isinstance(failed, TrainFailed), failed
    assert failed.reason == FailReason.NOT_FINITE
    assert "step 1 of 5" in failed.detail and "learning rate" in failed.detail
    assert not patch_values(idle, scene)
    assert not (tmp_path / "update").exists()


def test_damaged_download_fails_with_reason_download(idle, tmp_path):
    command = Scene(tmp_path, SLOW, SGD, "none").command()
    (tmp_path / "model").write_bytes(b"damaged")
    idle.trainer.train(command)
    failed = idle.outcome()
    assert isinstance(failed, TrainFailed), failed
    assert failed.reason == FailReason.DOWNLOAD


def test_model_of_another_shape_fails_the_round(idle, tmp_path):
    pid = idle.trainer.pid
    idle.trainer.train(Scene(tmp_path, SLOW, SGD, "none").command(schema="ab" * 32))
    failed = idle.outcome()
    assert isinstance(failed, TrainFailed), failed
    assert failed.reason == FailReason.TRAINING and "same version of the task" in failed.detail
    assert idle.trainer.pid == pid


@pytest.mark.medium
def test_a_kill_in_mid_training_is_seen_and_the_patch_survives(idle, tmp_path):
    """Died has the signal; the next round runs in a new process, and begins with the patch from before the kill."""
    scene = Scene(tmp_path, SLOW, ADAM, "all")
    idle.trainer.train(scene.command(round=20))
    assert isinstance(idle.outcome(), Trained)
    patch = patch_values(idle, scene)
    idle.trainer.train(replace(scene, plan=replace(ADAM, steps=100_000)).command(round=21))
    idle.until_training()
    pid = idle.trainer.pid
    os.kill(pid, signal.SIGKILL)
    died = idle.outcome()
    assert isinstance(died, Died)
    assert "SIGKILL" in died.detail and "out of memory?" in died.detail
    assert died.lost == (key(21),)
    assert idle.trainer.pid is None

    after_kill = patch_values(idle, scene)
    for name, value in patch.items():
        np.testing.assert_array_equal(after_kill[name], value, err_msg=name)
    idle.trainer.train(scene.command(round=21))
    assert isinstance(idle.next(), Ready)
    assert isinstance(idle.outcome(), Trained)
    assert idle.trainer.pid not in (None, pid)
    assert patch_values(idle, scene)["bn.weight:step"] == patch["bn.weight:step"] + 5


@pytest.mark.medium
def test_the_end_of_an_idle_process_costs_no_round(fresh, tmp_path):
    """Not even a round that another process has begun before the end is received."""
    watched = fresh("tests.device_agent.toy_tasks:SLOW", "ann:23")
    scene = Scene(tmp_path, SLOW, SGD, "none")
    watched.trainer.train(scene.command(round=1))
    assert isinstance(watched.outcome(), Trained)
    os.kill(watched.trainer.pid, signal.SIGKILL)
    while watched.trainer.pid is not None:
        time.sleep(0.001)
    watched.trainer.train(scene.command(round=2))
    died = watched.outcome()
    assert isinstance(died, Died) and died.lost == ()
    trained = watched.outcome()
    assert isinstance(trained, Trained) and trained.key == key(2)


@pytest.mark.medium
def test_a_process_that_cannot_be_set_up_loses_the_round_that_it_was_started_for(installed, tmp_path, monkeypatch):
    """Both commands were written before the process could answer the first."""
    watched = Watched(tmp_path, "tests.device_agent.toy_tasks:TOY", "absent:5")
    watched.trainer.train(Scene(tmp_path, SLOW, SGD, "none").command(round=4))
    failed = watched.outcome()
    watched.trainer.stop()
    assert failed == SetupFailed("toy: examples.npz is absent; fetch it first", DataError.exit_code, (key(4),))


def test_output_of_a_task_goes_to_the_log(idle, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    idle.trainer.train(Scene(tmp_path, SLOW, SGD, "none").command())
    assert isinstance(idle.outcome(), Trained)
    until_logged(caplog, "a task may print what it likes")


@pytest.mark.medium
def test_an_error_in_a_tasks_own_code_fails_the_round_in_one_line(fresh, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    mishap = tmp_path / "mishap"
    monkeypatch.setenv("TOY_MISHAP", str(mishap))
    watched = fresh("tests.device_agent.toy_tasks:MISHAP", "ann:23")
    assert isinstance(watched.next(), Ready)
    command = Scene(tmp_path, SLOW, SGD, "none").command()
    for _ in range(2):
        mishap.write_text("bug")
        watched.trainer.train(command)
        failed = watched.outcome()
        assert isinstance(failed, TrainFailed), failed
        assert failed.reason == FailReason.TRAINING
        assert "KeyError" in failed.detail and "\n" not in failed.detail
    until_logged(caplog, "Traceback")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("reference", "data", "problem"),
    [
        ("tests.device_agent.toy_tasks:TOY", "out-of-range:23", "train_y of device ann holds label 8 in row 0"),
        ("tests.shared.prepared_task:TASK", "nan", ""),
        (
            "tests.shared.prepared_task:PLAIN",
            "nan",
            "train_x of device ann holds NaN in row 12 (file readings.csv, line 13)",
        ),
        (
            "tests.shared.prepared_task:PLAIN",
            "labels",
            "train_y of device ann holds label 5 in row 7 (file readings.csv",
        ),
        ("tests.shared.prepared_task:PLAIN", "shape", "task 'prepared' declares input_shape (3,)"),
        ("tests.shared.prepared_task:PLAIN", "words", "train_x of device ann is of dtype object"),
        ("tests.shared.prepared_task:PLAIN", "float64", ""),
    ],
)
def test_an_agent_checks_its_data_when_it_starts(fresh, reference, data, problem):
    answer = fresh(reference, data).next()
    if problem:
        assert isinstance(answer, SetupFailed), answer
        assert problem in answer.detail
    else:
        assert isinstance(answer, Ready), answer


def test_unknown_task_fails_the_setup_with_the_usage_exit_code(fresh):
    watched = fresh("fedpatch.device_agent:TOY", "ann:5")
    failed = watched.next()
    assert isinstance(failed, SetupFailed)
    assert "no attribute 'TOY'" in failed.detail and (failed.exit_code, failed.lost) == (2, ())
    assert watched.trainer.pid is None


def ended_as(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """The first event of a training process that is this shell script."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr("fedpatch.device_agent.runtime.training_supervisor.LAST_WORDS_TIMEOUT_S", TIMEOUT_S)
    watched = Watched(tmp_path)
    watched.trainer.start()
    died = watched.next()
    watched.trainer.stop()
    return died


def test_garbage_from_the_process_is_its_end(installed, tmp_path, monkeypatch, caplog):
    died = ended_as("echo 'ERROR wrong version' >&2\necho hello\nexec sleep 600", tmp_path, monkeypatch)
    assert isinstance(died, Died) and "SIGKILL" in died.detail
    assert "training channel" in caplog.text
    until_logged(caplog, "wrong version")


def test_unexplained_end_is_reported_with_the_last_output(installed, tmp_path, monkeypatch):
    died = ended_as("echo 'No module named torch' >&2\nexit 3", tmp_path, monkeypatch)
    assert died == Died("the training process ended with exit code 3; last output: No module named torch")


def test_a_stop_ends_the_process_in_mid_training_without_an_event(idle, tmp_path):
    idle.trainer.train(Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "none").command())
    idle.until_training()
    pid = idle.trainer.pid
    idle.trainer.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert idle.trainer.pid is None
    while not idle.events.empty():
        assert isinstance(idle.events.get(), TrainProgress)


QUIET_S = 20 * PROGRESS_EVERY_S
"""A training that continues reports progress twenty times meanwhile."""


@pytest.fixture
def own_process(installed, tmp_path):
    """A separate process for one test."""
    watched = Watched(tmp_path)
    watched.trainer.start()
    yield watched
    watched.trainer.stop()


def held_at(watched: Watched) -> int:
    """The last step before progress stops for QUIET_S; the test fails if training does not stop."""
    done, give_up_at = 0, time.monotonic() + TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            event = watched.events.get(timeout=QUIET_S)
        except queue.Empty:
            return done
        assert isinstance(event, TrainProgress), event
        done = event.done
    pytest.fail(f"{done} steps, and still they are taken")


@pytest.mark.medium
def test_a_pause_holds_the_steps_until_it_goes_on(own_process, tmp_path):
    own_process.trainer.train(Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "none").command())
    own_process.until_training()
    own_process.trainer.pause()
    done = held_at(own_process)
    assert own_process.trainer.pid is not None
    own_process.trainer.go_on()
    following = own_process.next()
    assert isinstance(following, TrainProgress), following
    assert done < following.done < 100_000
    own_process.trainer.cancel()
    assert isinstance(own_process.outcome(), TrainCancelled)


@pytest.mark.medium
def test_a_cancel_ends_a_pause(own_process, tmp_path):
    scene = Scene(tmp_path, SLOW, replace(SGD, steps=100_000), "none")
    own_process.trainer.train(scene.command(round=8))
    own_process.until_training()
    own_process.trainer.pause()
    own_process.trainer.cancel()
    assert own_process.outcome() == TrainCancelled(key(8))
    own_process.trainer.train(replace(scene, plan=SGD).command(round=9))
    assert isinstance(own_process.outcome(), Trained)


MEMORY_TIMEOUT_S = 120


class Device:
    """A training process whose task has, on request, a fault in the next round."""

    def __init__(self, folder) -> None:
        self.mishap = folder / "mishap"
        self.events: queue.Queue = queue.Queue()
        setup = WorkerSetup(
            "tests.device_agent.toy_tasks:MISHAP", "ann:23", str(folder), str(folder / "patches"), "ann"
        )
        self.trainer = Trainer(setup, self.events.put)
        self._scene = Scene(folder, MISHAP, ADAM, "all")

    def round(self, number: int, mishap: str = ""):
        if mishap:
            self.mishap.write_text(mishap)
        self.trainer.train(self._scene.command(round=number))
        while isinstance(event := self.events.get(timeout=MEMORY_TIMEOUT_S), Ready | TrainProgress):
            pass
        return event


@pytest.fixture(scope="module")
def device(installed, tmp_path_factory):
    """One process for all tests: a fault does not affect the next round."""
    device = Device(tmp_path_factory.mktemp("device"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TOY_MISHAP", str(device.mishap))
        device.trainer.start()
        yield device
        device.trainer.stop()


@pytest.mark.medium
@pytest.mark.parametrize(("what", "words"), [("torch", "memory"), ("numpy", "Unable to allocate")])
def test_an_allocation_that_is_refused_fails_the_round_and_keeps_the_process(device, what, words):
    """RuntimeError of torch or MemoryError of numpy: the allocated memory is released, and torch need not be loaded again."""
    device.round(1)
    pid = device.trainer.pid
    failed = device.round(2, what)
    assert isinstance(failed, TrainFailed), failed
    assert (failed.key, failed.reason) == (key(2), FailReason.TRAINING)
    assert words in failed.detail
    assert isinstance(device.round(3), Trained)
    assert device.trainer.pid == pid


@pytest.mark.medium
def test_a_process_that_the_system_kills_costs_the_round_and_is_replaced(device):
    device.round(1)
    pid = device.trainer.pid
    died = device.round(4, "killed")
    assert isinstance(died, Died), died
    assert died.lost == (key(4),)
    assert "SIGKILL; out of memory?" in died.detail
    trained = device.round(5)
    assert isinstance(trained, Trained) and trained.key == key(5)
    assert device.trainer.pid not in (None, pid)
