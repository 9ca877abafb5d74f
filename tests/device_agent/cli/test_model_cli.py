"""`predict`, `evaluate`, `models` and `rollback` of `fedpatch-agent`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore, StoredModel
from fedpatch.device_agent.state.status_file import StatusFile, lock_state_dir
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.model_metadata import METADATA_FILE, MODEL_FILE
from tests.device_agent.exported_models import RUN, onnx_of, publish
from tests.support.other_users import NOBODY, acting_as_nobody, open_directory
from tests.support.programs import Ended, agent_leaves

DATA = "shard:0/10"
FIGURES = "accuracy 0.5 on 20 test examples (chosen by 0.75 on 12 validation examples)"
DIGITS = {"task": "digits", "input_shape": (64,), "output_shape": (10,), "class_names": tuple("0123456789")}


@pytest.fixture(scope="module")
def onnx() -> bytes:
    """An untrained model of the digits."""
    return onnx_of(digits.TASK, (64,))


@pytest.fixture
def state_dir(tmp_path: Path, onnx: bytes) -> Path:
    """State of an agent after rounds 1 to 3."""
    store = ModelStore(tmp_path / MODELS_DIRECTORY, 3)
    for round in (1, 2, 3):
        publish(store, round, onnx, **DIGITS)
    return tmp_path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.save(tmp_path / "today.npy", np.random.default_rng(1).random((4, 64), dtype=np.float32))
    return tmp_path / "today.npy"


def test_predict_names_the_class_of_each_example(agent, state_dir, inputs):
    done = agent("predict", inputs, "--state-dir", state_dir)
    known = json.loads(agent("predict", inputs, inputs, "--state-dir", state_dir, "--json").out)
    assert (done.code, done.err) == (0, "")
    assert (known["task"], known["run"], known["round"]) == ("digits", RUN, 3)
    assert [one["row"] for one in known["predictions"]] == [0, 1, 2, 3] * 2
    for line, one in zip(done.out.splitlines(), known["predictions"], strict=False):
        assert line == f"{inputs}[{one['row']}]: {one['class']}"
        assert one["class_index"] == int(one["class"]) == int(np.argmax(one["outputs"]))
        assert len(one["outputs"]) == 10


def test_predict_shows_the_outputs_where_there_are_no_classes(agent, tmp_path, onnx, inputs):
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx, **{**DIGITS, "class_names": ()})
    lines = agent("predict", inputs, "--state-dir", tmp_path).out.splitlines()
    assert len(lines) == 4
    assert all(len(line.partition(": ")[2].split()) == 10 for line in lines)
    assert all(np.isfinite(float(value)) for line in lines for value in line.partition(": ")[2].split())


def test_models_name_the_source_of_a_model_and_the_reason(agent, state_dir, onnx):
    reason = "accuracy 0.9 alone, 0.75 federated, on 12 validation examples"
    publish(ModelStore(state_dir / MODELS_DIRECTORY), 4, onnx, **DIGITS, source="alone", reason=reason)
    assert f"trained alone ({reason}), of round 4" in agent("models", "--state-dir", state_dir).out


def test_predict_takes_another_model_by_its_path(agent, state_dir, inputs):
    version = ModelStore(state_dir / MODELS_DIRECTORY).versions("digits")[2]
    for path in (version.path, version.path / MODEL_FILE):
        known = json.loads(agent("predict", inputs, "--model", path, "--json").out)
        assert known["round"] == 1
    refused = agent("predict", inputs, "--model", version.path, "--task", "mnist")
    assert (refused.code, refused.out) == (2, "")
    assert "is a model of task 'digits', not of 'mnist'" in refused.err


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("no.npy", "--state-dir", "STATE"), 1, "no.npy: No such file"),
        (("today.npy", "--state-dir", "STATE", "--task", "mnist"), 2, "there is no personal model yet"),
        (("today.npy", "--state-dir", "NOWHERE"), 2, "holds no personal model"),
        (("today.npy", "--model", "NOWHERE"), 1, "may this user read it"),
        (("today.npy", "--state-dir", "STATE", "--task", "../x"), 2, "no task's name"),
    ],
    ids=["file", "task", "state", "model", "path"],
)
def test_predict_names_the_missing_part(agent, state_dir, inputs, monkeypatch, arguments, code, problem):
    monkeypatch.chdir(inputs.parent)
    places = {"STATE": str(state_dir), "NOWHERE": str(state_dir / "nowhere")}
    ended = agent("predict", *(places.get(one, one) for one in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert problem in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("given", ["nope", "nope.onnx"])
def test_a_model_that_is_not_there_is_named(agent, inputs, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    for command in (("predict", inputs), ("evaluate", "--state-dir", tmp_path, "--data", DATA)):
        ended = agent(*command, "--model", given)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"fedpatch-agent: {given}/")
        assert "is it an exported model?" in ended.err


def test_evaluate_measures_on_the_devices_own_test_data(agent, state_dir):
    given = ("evaluate", "--state-dir", state_dir, "--data", DATA)
    known = json.loads(agent(*given, "--json").out)
    own = digits.TASK.load_data(DATA, Path("/nonexistent"))
    outputs = json.loads(_predicted(agent, state_dir, own.test_x))["predictions"]
    right = np.mean([one["class_index"] == target for one, target in zip(outputs, own.test_y, strict=True)])
    assert known["user_accuracy"] == pytest.approx(right)
    assert (known["metric"], known["test_examples"]) == ("accuracy", len(own.test_x))
    assert (known["user_accuracy_when_made"], known["round"]) == (0.5, 3)
    done = agent(*given).out.splitlines()
    assert done[0] == f"digits: accuracy {right:.4g} on {len(own.test_x)} test examples (0.5 when it was made)"
    assert "model of round 3" in done[1]


def _predicted(agent: Callable[..., Ended], state_dir: Path, inputs: np.ndarray) -> str:
    np.save(state_dir / "own.npy", inputs)
    return agent("predict", state_dir / "own.npy", "--state-dir", state_dir, "--json").out


def test_evaluate_takes_a_metric_that_wants_tensors(agent, tmp_path, onnx):
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx_of_toy(), task="toy")
    given = ("--state-dir", tmp_path, "--task", "tests.device_agent.toy_tasks:TOY", "--data", "ann:20")
    ended = agent("evaluate", *given, "--json")
    assert ended.code == 0, ended.err
    assert 0.0 <= json.loads(ended.out)["user_accuracy"] <= 1.0


def onnx_of_toy() -> bytes:
    """A model of the toy task."""
    from tests.device_agent.toy_tasks import TOY

    return onnx_of(TOY, (12,))


def test_evaluate_reports_wrong_data(agent, state_dir):
    ended = agent("evaluate", "--state-dir", state_dir, "--data", "shards:1")
    assert (ended.code, ended.out) == (2, "")
    assert "data spec" in ended.err


def test_evaluate_reports_errors_of_task_code(agent, tmp_path):
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx_of_toy(), task="toy")
    given = ("evaluate", "--state-dir", tmp_path, "--task", "tests.device_agent.toy_tasks:TOY", "--data")
    ended = agent(*given, "bug:20")
    assert (ended.code, ended.out) == (1, "")
    assert "task 'toy' failed with data 'bug:20': KeyError: 'no such column'; see with --debug" in ended.err
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        ended = agent(*given, "ann:20")
    assert ended.code == 2 and "the metric of task 'toy' takes torch's tensors, and torch is not there" in ended.err


@pytest.mark.medium
@pytest.mark.parametrize("command", ["predict", "evaluate", "models", "rollback"])
def test_no_command_imports_torch(state_dir, inputs, command):
    """A Pi has no memory for torch beside the application's; the shipped tasks do not need it either."""
    arguments = {"predict": [str(inputs)], "evaluate": ["--data", DATA]}.get(command, [])
    loaded = "sorted({'torch', 'onnx'} & sys.modules.keys()), 'onnxruntime' in sys.modules"
    done = agent_leaves(loaded, command, *arguments, "--state-dir", state_dir)
    assert done == f"[] {command in ('predict', 'evaluate')}"


def test_models_are_listed_the_newest_first(agent, state_dir):
    store = ModelStore(state_dir / MODELS_DIRECTORY)
    store.note_kept("digits", StoredModel(RUN, 4, "accuracy 0.1 is worse"))
    lines = agent("models", "--state-dir", state_dir).out.splitlines()
    assert [line.startswith(f"present model of digits, {FIGURES}: of round") for line in lines] == [True] + [False] * 3
    assert f"of round 3 of run {RUN}" in lines[0]
    assert lines[3] == f"round 4 of run {RUN} gave no other model of digits: accuracy 0.1 is worse"
    known = json.loads(agent("models", "--state-dir", state_dir, "--json").out)
    assert [(one["round"], one["current"]) for one in known] == [(3, True), (2, False), (1, False)]
    assert known[0]["class_names"] == list("0123456789")


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ({"validation_accuracy": None, "validation_examples": 0}, "not chosen: no validation data"),
        ({"validation_accuracy": None}, "chosen by no number on 12 validation examples"),
    ],
)
def test_models_gives_the_reason_for_a_missing_validation_figure(agent, tmp_path, onnx, validation, words):
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx, **DIGITS, **validation)
    line = agent("models", "--state-dir", tmp_path).out
    assert line.startswith(f"present model of digits, accuracy 0.5 on 20 test examples ({words}): of round 1")


def test_models_reports_a_device_without_models(agent, tmp_path):
    assert agent("models", "--state-dir", tmp_path).out == f"no personal models yet in {tmp_path}\n"
    assert json.loads(agent("models", "--state-dir", tmp_path, "--json").out) == []


@pytest.mark.parametrize("command", ["models", "rollback"])
def test_state_directory_that_is_absent_is_an_error_as_for_status(agent, tmp_path, command):
    done = agent(command, "--state-dir", tmp_path / "nope")
    assert (done.code, done.out, done.err) == (2, "", agent("status", "--state-dir", tmp_path / "nope").err)
    assert "nope" in done.err


@pytest.mark.parametrize("command", ["models", "status", "patches"])
def test_state_directory_of_another_user_is_an_error_that_names_the_user(agent, command):
    with open_directory() as directory:
        state_dir = directory / "state"
        state_dir.mkdir(mode=0o700)
        with acting_as_nobody():
            done = agent(command, "--state-dir", state_dir)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"fedpatch-agent: {state_dir}/")
    assert ": Permission denied; run as the user that owns it (sudo -u root), or give it back" in done.err


def test_rollback_makes_an_earlier_model_the_present_one(agent, state_dir, inputs):
    done = agent("rollback", "--state-dir", state_dir)
    assert done.out.startswith(f"present model of digits, {FIGURES}: of round 2 ")
    assert json.loads(agent("predict", inputs, "--state-dir", state_dir, "--json").out)["round"] == 2
    known = json.loads(agent("rollback", "--to", 3, "--state-dir", state_dir, "--json").out)
    assert (known["round"], known["current"]) == (3, True)
    refused = agent("rollback", "--to", 9, "--state-dir", state_dir)
    assert (refused.code, refused.out) == (2, "")
    assert "there are those of rounds: 3, 2, 1" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_that_root_writes_for_the_owner_belong_to_the_agents_user(agent, onnx):
    """With sudo; a lock of root would keep the agent from its next personal model."""
    with open_directory() as folder:
        store = ModelStore(folder / "state" / MODELS_DIRECTORY, 3)
        for round in (1, 2):
            publish(store, round, onnx, **DIGITS)
        (folder / "state" / MODELS_DIRECTORY / "digits" / ".lock").unlink()
        for path in (folder / "state", *(folder / "state").rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        for words in (["rollback"], ["pause"], ["rollback", "--release"]):
            assert agent(*words, "--state-dir", folder / "state").code == 0
        written = list((folder / "state").rglob("*"))
        assert {path.lstat().st_uid for path in written} == {NOBODY}
        assert {"pause", "current", ".lock"} <= {path.name for path in written}


def test_status_lists_the_personal_models(agent, state_dir):
    lock_state_dir(state_dir).release()
    StatusFile(state_dir, {"device_id": "pi", "fleet": "f", "broker": "b", "version": "1"}).write({"state": "idle"})
    assert "present model of digits" in agent("status", "--state-dir", state_dir).out
    known = json.loads(agent("status", "--state-dir", state_dir, "--json").out)
    assert [one["round"] for one in known["models"]] == [3, 2, 1]
    (state_dir / MODELS_DIRECTORY / "digits" / "current" / METADATA_FILE).write_text("{}")
    assert "does not describe a model" in agent("status", "--state-dir", state_dir).out


def test_models_whose_link_is_lost_are_not_called_absent(agent, state_dir):
    ModelStore(state_dir / MODELS_DIRECTORY).note_kept("digits", StoredModel(RUN, 4, "accuracy 0.1 is worse"))
    (state_dir / MODELS_DIRECTORY / "digits" / "current").unlink()
    lines = agent("models", "--state-dir", state_dir).out.splitlines()
    assert "its link is lost; `fedpatch-agent rollback`" in lines[3] and len(lines) == 4


def test_models_and_status_give_the_reason_for_a_missing_first_model(agent, tmp_path):
    store = ModelStore(tmp_path / MODELS_DIRECTORY)
    store.prepare("digits")
    store.note_kept("digits", StoredModel(RUN, 7, "too little memory"))
    lock_state_dir(tmp_path).release()
    StatusFile(tmp_path, {"device_id": "pi", "fleet": "f", "broker": "b", "version": "1"}).write({"state": "idle"})
    line = f"no personal model of digits yet: round 7 of run {RUN} gave none: too little memory"
    assert agent("models", "--state-dir", tmp_path).out.splitlines() == [line]
    assert line in agent("status", "--state-dir", tmp_path).out.splitlines()
    assert json.loads(agent("models", "--state-dir", tmp_path, "--json").out) == []
    assert "holds no personal model" in agent("predict", "x.npy", "--state-dir", tmp_path).err
