"""Raw inputs in prediction: `prepare` is applied, and inputs unlike those of training are reported."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpatch.device_agent.models.evaluate import evaluate_model
from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.training.local_trainer import LocalResult, LocalTrainer
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.task_checks.data_checks import load_checked
from fedpatch.shared.tasks.input_statistics import doubtful_classes
from fedpatch.shared.tasks.model_metadata import INPUTS_FILE, METADATA_FILE
from fedpatch.shared.tasks.prepare import preparation_of
from fedpatch.shared.tasks.task import DeviceData, Task
from tests.device_agent.device_rounds import SGD, Scene
from tests.shared.prepared_task import PLAIN, REFERENCE, TASK, rows
from tests.support.programs import agent_leaves

RAW, LABELS = rows(200, seed=4)


def _trained(task: Task, reference: str, folder: Path) -> Path:
    """State of a device whose model was trained on its rows and published."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fitted = load_checked(task, "good", Path(), "device pi")
        trainer = LocalTrainer(task, fitted.data)
        x, y = torch.from_numpy(fitted.data.train_x), torch.from_numpy(fitted.data.train_y)
        optimizer = torch.optim.Adam(trainer.model.parameters(), lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            task.loss(trainer.model(x), y).backward()
            optimizer.step()
    store = ModelStore(folder / MODELS_DIRECTORY)
    preparation = preparation_of(task, fitted.raw_shape)
    export = ModelExport(trainer, store, 1.0, task_ref=reference, preparation=preparation)
    command = Scene(folder, task, SGD, "none").command()
    export.stage(command, LocalResult({}, len(x), 1, 0.0, 0.5, 0.5, 0.0))
    assert store.publish(task.name, command.key.run, command.key.round) is not None
    return folder


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State of a device whose task has `prepare`."""
    return _trained(TASK, REFERENCE, tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def plain_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State of a device whose task scales rows itself, so that the model's metadata do not describe the scaling."""

    def scaled(spec: str, root: Path):
        return load_checked(TASK, spec, root, "device pi").data

    return _trained(replace(PLAIN, load_data=scaled), "", tmp_path_factory.mktemp("plain"))


def _accuracy(model: PersonalModel, inputs: np.ndarray, **how: bool) -> float:
    return float((model.predict(inputs, **how).argmax(axis=1) == LABELS).mean())


def test_raw_rows_are_prepared_before_they_are_predicted(state_dir):
    model = PersonalModel.open(state_dir)
    assert _accuracy(model, RAW) > 0.9
    assert TASK.prepare is not None
    assert _accuracy(model, TASK.prepare(RAW), prepared=True) == _accuracy(model, RAW)
    assert model.classify(RAW[:3]) == [("low", "high")[one] for one in model.predict(RAW[:3]).argmax(axis=1)]


def test_rows_without_the_scaling_of_training_are_warned_of(plain_dir, caplog):
    caplog.set_level(logging.WARNING)
    model = PersonalModel.open(plain_dir)
    assert TASK.prepare is not None
    assert _accuracy(model, TASK.prepare(RAW)) > 0.9 and not caplog.records
    assert _accuracy(model, RAW) < 0.8
    assert "values lie outside of those that the model was trained on: feature 0 from" in caplog.text
    assert "give inputs as the task's load_data gives them" in caplog.text


def test_rows_that_are_prepared_twice_are_warned_of(state_dir, caplog):
    assert TASK.prepare is not None
    PersonalModel.open(state_dir).predict(TASK.prepare(RAW))
    assert "values lie outside of those" in caplog.text


def test_a_missing_value_is_filled_by_prepare_and_else_refused(state_dir, plain_dir):
    missing = RAW[:2].copy()
    missing[1, 2] = np.nan
    assert np.isfinite(PersonalModel.open(state_dir).predict(missing)).all()
    with pytest.raises(DataError, match=r"row 1 of the inputs holds nan at \[2\]; fill it"):
        PersonalModel.open(plain_dir).predict(missing)


def test_a_task_that_cannot_be_found_is_named_with_the_ways_out(state_dir):
    model = PersonalModel.open(state_dir)
    object.__setattr__(model.metadata, "task_ref", "gone_task:TASK")
    with pytest.raises(
        UsageError, match=r"`prepare` of task 'prepared' made of raw ones, and the task cannot be found here"
    ):
        model.predict(RAW)
    model.predict(TASK.prepare(RAW) if TASK.prepare else RAW, prepared=True)
    object.__setattr__(model.metadata, "task_ref", "")


def test_prepare_unlike_that_of_training_is_refused(state_dir):
    newer = replace(TASK, prepare=lambda raw: raw / 1000)
    with pytest.raises(UsageError, match="is not the one that the model was trained with"):
        PersonalModel.open(state_dir, newer).predict(RAW)
    assert _accuracy(PersonalModel.open(state_dir, TASK), RAW) > 0.9


def test_evaluate_prepares_the_test_data_once(state_dir):
    model = PersonalModel.open(state_dir)
    measured, count = evaluate_model(model, TASK, "good", Path())
    assert count == 60
    assert measured == pytest.approx(model.metadata.user_accuracy or 0.0)


def test_evaluate_with_another_prepare_than_in_training_is_refused(state_dir, plain_dir):
    model, plain = PersonalModel.open(state_dir), PersonalModel.open(plain_dir)
    changed = replace(TASK, prepare=lambda raw: raw / 1000)
    with pytest.raises(UsageError, match="is not the one that the model was trained with"):
        evaluate_model(model, changed, "good", Path())
    with pytest.raises(UsageError, match="the task has no prepare now"):
        evaluate_model(model, replace(TASK, prepare=None), "good", Path())
    with pytest.raises(UsageError, match=r"trained without a `prepare`, and task .* has one now"):
        evaluate_model(plain, replace(PLAIN, prepare=TASK.prepare), "good", Path())


def test_metadata_hold_input_statistics_and_a_trace_of_prepare(state_dir):
    """Statistics of the prepared training inputs and a probe of `prepare`, but no row of the data."""
    file = state_dir / MODELS_DIRECTORY / TASK.name / "current" / METADATA_FILE
    known = json.loads(file.read_bytes())
    data = load_checked(TASK, "good", Path(), "device pi").data
    assert known["task_ref"] == REFERENCE
    assert known["prepare"]["raw_shape"] == [3] and known["prepare"]["probe"]
    statistics = json.loads(file.with_name(INPUTS_FILE).read_bytes())
    np.testing.assert_allclose(statistics["mean"], data.train_x.mean(axis=0), atol=1e-4)
    assert statistics["examples"] == len(data.train_x)
    assert file.stat().st_size < 10_000


def test_group_may_read_the_model_and_not_the_statistics_of_the_data(state_dir):
    folder = state_dir / MODELS_DIRECTORY / TASK.name / "current"
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in (METADATA_FILE, INPUTS_FILE)}
    assert modes == {METADATA_FILE: 0o640, INPUTS_FILE: 0o600}
    assert json.loads((folder / METADATA_FILE).read_bytes())["inputs"] is None
    assert PersonalModel(folder.resolve()).metadata.inputs is not None


@pytest.mark.parametrize(
    ("gone", "words"),
    [("train", "answers on which this device never trained: high (1 of 2)"), ("test", "could not be judged, because")],
)
def test_answer_of_a_class_without_examples_here_is_named(tmp_path, gone, words):
    def one_sided(spec: str, root: Path) -> DeviceData:
        data = load_checked(TASK, spec, root, "device pi").data
        low = {name: getattr(data, f"{name}_y") == 0 for name in ("train", "test")}
        kept = low[gone]
        parts = {f"{gone}_{axis}": getattr(data, f"{gone}_{axis}")[kept] for axis in "xy"}
        return replace(data, **parts)

    _trained(replace(PLAIN, load_data=one_sided), "", tmp_path)
    known = PersonalModel.open(tmp_path).metadata.inputs
    assert known is not None
    assert (known.untrained, known.untested) == (((1,), ()) if gone == "train" else ((), (1,)))
    outputs = np.eye(2, dtype=np.float32)
    (found,) = doubtful_classes(outputs, known, ("low", "high"))
    assert words in found and "high (1 of 2)" in found
    assert doubtful_classes(outputs[:1], known, ("low", "high")) == []


def _csv(folder: Path, text: str) -> Path:
    (folder / "now.csv").write_text(text)
    return folder / "now.csv"


def test_predict_prepares_rows_of_a_file_and_warns_on_stderr(agent, state_dir, tmp_path):
    usual = _csv(tmp_path, "t,p,l\n20.0,1010,\n5.5,990,100\n")
    ended = agent("predict", usual, "--state-dir", state_dir, "--json")
    assert (ended.code, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert [one["class"] for one in document["predictions"]] == ["high", "low"]
    assert document["warnings"] == []
    odd = _csv(tmp_path, "0.1,0.2,0.3\n")
    ended = agent("predict", odd, "--state-dir", state_dir, "--json")
    assert ended.code == 0
    assert f"warning: {odd}: values lie outside of those that the model was trained on" in ended.err
    assert len(json.loads(ended.out)["warnings"]) == 1
    assert agent("predict", odd, "--state-dir", state_dir, "--prepared").err == ""


def test_predict_names_the_file_of_a_missing_value(agent, plain_dir, tmp_path):
    ended = agent("predict", _csv(tmp_path, "0.1,,0.3\n"), "--state-dir", plain_dir)
    assert (ended.code, ended.out) == (1, "")
    assert "now.csv: row 0 of the inputs holds nan at [1]" in ended.err


def test_predict_applies_prepare_without_torch(state_dir, tmp_path):
    np.save(tmp_path / "now.npy", RAW[:3])
    printed = agent_leaves("'torch' in sys.modules", "predict", tmp_path / "now.npy", "--state-dir", state_dir)
    assert printed == "False"


def test_predict_says_where_an_answer_was_never_trained_on(agent, state_dir, tmp_path):
    state = tmp_path / "state"
    shutil.copytree(state_dir, state, symlinks=True)
    file = state / MODELS_DIRECTORY / TASK.name / "current" / INPUTS_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "untrained": [1]}))
    usual = _csv(tmp_path, "t,p,l\n20.0,1010,\n5.5,990,100\n")
    ended = agent("predict", usual, "--state-dir", state, "--json")
    (found,) = json.loads(ended.out)["warnings"]
    assert found == f"{usual}: answers on which this device never trained: high (1 of 2)"
    assert found in ended.err
