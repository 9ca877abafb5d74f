"""The training process by itself: its reaction to a setup, to garbage, and to the end of its agent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from fedpatch.device_agent.job.job_effects import ContinueTraining, PauseTraining
from fedpatch.device_agent.job.training_messages import CancelTraining, MakeModel, Ready, WorkerSetup, write_message
from fedpatch.device_agent.training import training_process
from fedpatch.device_agent.training.training_process import TrainingControl, error_text, fail_reason, set_up
from fedpatch.shared.errors import DataError, SchemaMismatch, StateError, UpdateRefused, UsageError, WireError
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.device_rounds import ADAM, Scene
from tests.device_agent.job.test_training_messages import TRAIN
from tests.device_agent.toy_tasks import TOY
from tests.support.specs import update

TIMEOUT_S = 120


def test_training_control_stops_at_pause_and_cancel():
    control = TrainingControl()
    assert not control.stopped()
    control.take(PauseTraining())
    assert control.stopped()
    control.take(ContinueTraining())
    assert not control.stopped()
    control.take(CancelTraining())
    assert control.stopped() and control.cancelled()


def setup_of(directory: Path, data: str, **more: Any) -> WorkerSetup:
    task, patches = "tests.device_agent.toy_tasks:TOY", str(directory / "patches")
    return WorkerSetup(task, data, str(directory), patches, "ann", **more)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("absent:5", "toy: examples.npz is absent; fetch it first"),
        ("bug:5", "task 'toy' failed with data 'bug:5': KeyError: 'no such column'"),
    ],
)
def test_error_of_task_code_is_reported_with_its_data(tmp_path, data, text):
    with pytest.raises(DataError) as caught:
        set_up(setup_of(tmp_path, data))
    assert error_text(caught.value).startswith(text)


def test_ready_holds_schema_and_number_of_examples(tmp_path):
    _, ready = set_up(setup_of(tmp_path, "ann:23"))
    schema = Scene(tmp_path, TOY, ADAM, "all").model
    assert ready == Ready("toy", schema.digest, 23, schema.specs)


@pytest.mark.parametrize(
    ("max_steps", "max_epochs", "why"), [(4, 100, "max_steps = 4"), (100, 1, "max_epochs = 1"), (100, 100, "")]
)
def test_a_plan_beyond_the_owners_limits_is_not_trained(tmp_path, max_steps, max_epochs, why):
    limits = {"max_steps": max_steps, "max_epochs": max_epochs}
    local_update, _ = set_up(setup_of(tmp_path, "ann:23", private="none", **limits))
    command = Scene(tmp_path, TOY, replace(ADAM, steps=5, batch_size=23), "none").command()
    if not why:
        assert local_update.run(command, lambda *_: None, lambda: False)
        return
    with pytest.raises(UsageError, match=why):
        local_update.run(command, lambda *_: None, lambda: False)
    assert not (tmp_path / "update").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WireError("damaged"), FailReason.DOWNLOAD),
        (StateError("no space left"), FailReason.STORAGE),
        (UpdateRefused("not_finite", "nan"), FailReason.NOT_FINITE),
        (UpdateRefused("private_value", "leak"), FailReason.TRAINING),
        (SchemaMismatch("other model"), FailReason.TRAINING),
        (MemoryError(), FailReason.TRAINING),
    ],
)
def test_every_error_has_a_reason_that_the_coordinator_counts(error, reason):
    assert fail_reason(error) is reason


def test_error_that_names_a_file_of_any_bytes_can_be_sent():
    name = os.fsdecode(b"caf\xe9.csv")
    for error in (DataError(f"{name}, line 2: no number"), OSError(2, "no such file", name)):
        assert "caf?.csv" in error_text(error).replace("\\udce9", "?")
        error_text(error).encode()


def test_an_error_becomes_one_line_of_bounded_length():
    text = error_text(ValueError("first line\n  second " + "x" * 1000))
    assert text.startswith("ValueError: first line second xxx")
    assert len(text) == 500


def _process(directory: Path) -> subprocess.Popen[bytes]:
    """A training process without a Trainer."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedpatch.device_agent.training.training_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
    )


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x03abc",
        b"\x00\x00\x00\x09\x92\xa5Trick\x90\x90",
    ],
    ids=["cut", "too long", "empty", "no msgpack", "unknown"],
)
def test_garbage_instead_of_a_command_ends_the_process_in_words(installed, tmp_path, garbage):
    with _process(tmp_path) as process:
        answers, errors = process.communicate(garbage, timeout=TIMEOUT_S)
    assert (process.returncode, answers) == (1, b"")
    assert b"training channel" in errors and b"Traceback" not in errors


def test_a_process_whose_agent_is_gone_ends(installed, tmp_path):
    with _process(tmp_path) as process:
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_a_module_in_the_current_directory_is_not_imported(installed, tmp_path):
    for name in ("fedpatch", "queue"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('decoy')")
    with _process(tmp_path) as process:
        setup = WorkerSetup(
            "fedpatch.shared.tasks.bundled.digits:TASKS", "", str(tmp_path), str(tmp_path / "patches"), "ann"
        )
        write_message(cast(BinaryIO, process.stdin), setup)
        process.wait(TIMEOUT_S)
        _, errors = process.communicate()
    assert process.returncode == 2
    assert b"decoy" not in errors


@pytest.mark.parametrize("failing", [False, True])
def test_end_of_the_input_ends_the_process_after_its_last_work(failing):
    """States that are kept in memory are written; a disk error is logged."""
    code = f"""
import os, time
from fedpatch.device_agent.training.training_process import CommandReader
from fedpatch.shared.errors import StateError

def last_work():
    print("written", flush=True)
    if {failing}:
        raise StateError("no space left")

reading, writing = os.pipe()
reader = CommandReader(os.fdopen(reading, "rb"))
reader.on_end = last_work
os.close(writing)
time.sleep({TIMEOUT_S})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "written\n")
    assert ("no space left" in done.stderr) == failing


def test_cancel_reaches_the_measurement_behind_which_a_personal_model_waits(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(training_process, "_end_process", lambda *_: ended.set())
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        reader = training_process.CommandReader(stream)
        with os.fdopen(writing, "wb") as agent:
            for command in (TRAIN, MakeModel(TRAIN, update()), CancelTraining(), TRAIN):
                write_message(agent, command)
            controls = [reader.next()[1] for _ in range(3)]
        assert ended.wait(TIMEOUT_S)
    assert [control.cancelled() for control in controls] == [True, False, False]
