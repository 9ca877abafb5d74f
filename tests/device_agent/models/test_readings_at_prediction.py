"""Predictions from raw readings: the task's columns, windows and `prepare`, as in training."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import ReadingsFormat, read
from fedpatch.shared.tasks.prepare import preparation_of
from fedpatch.shared.tasks.task import Task
from tests.device_agent.exported_models import onnx_of, publish
from tests.device_agent.toy_tasks import TOY

FORM = ReadingsFormat(["light", "sound"], "mode", ["day", "night"], time="when", window=4, stride=2)


def build():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(8, 2))


def prepare(raw: np.ndarray) -> np.ndarray:
    filled: np.ndarray = np.nan_to_num(raw) / 10
    return filled


TASK: Task = replace(
    TOY,
    name="hall",
    build_model=build,
    prepare=prepare,
    readings=FORM,
    class_names=("day", "night"),
    input_shape=(2, 4),
)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = ModuleType("hall_task")
    module.TASK = TASK  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hall_task", module)
    known = {
        "task": "hall",
        "task_ref": "hall_task:TASK",
        "input_shape": (2, 4),
        "output_shape": (2,),
        "readings": FORM,
    }
    publish(
        ModelStore(tmp_path / MODELS_DIRECTORY),
        1,
        onnx_of(TASK, (2, 4)),
        **known,
        class_names=("day", "night"),
        prepare=preparation_of(TASK, (2, 4)),
    )
    return tmp_path


def lines(count: int = 9, label: str = "") -> list[str]:
    return [f"2026-03-01T00:00:{i:02},{i % 3},{-i}{label}" for i in range(count)]


TEXTS = {
    "header and target": ["when,light,sound,mode", *lines(label=",day")],
    "header": ["when,light,sound", *lines()],
    "other order": ["sound,when,light", *(",".join((c, a, b)) for a, b, c in (one.split(",") for one in lines()))],
    "no header": lines(),
    "no header, target": lines(label=",night"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_predict_takes_the_devices_own_files_and_gives_the_time_of_each_window(agent, state_dir, kind):
    file = state_dir / "new.csv"
    file.write_text("\n".join([*TEXTS[kind], "2026-03-01T00:00:59,half"]))
    ended = agent("predict", file, "--state-dir", state_dir, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [one["time"] for one in found["predictions"]] == [f"2026-03-01T00:00:0{second}Z" for second in (3, 5, 7)]
    assert found["predictions"][0]["place"].startswith("new.csv, line ")
    raw = np.array([[[i % 3, -i] for i in range(begin, begin + 4)] for begin in (0, 2, 4)], np.float32).transpose(
        0, 2, 1
    )
    expected = PersonalModel.open(state_dir, TASK).predict(raw)
    np.testing.assert_allclose([one["outputs"] for one in found["predictions"]], expected, rtol=1e-5)
    shown = agent("predict", file, "--state-dir", state_dir).out.splitlines()[0]
    assert shown == f"{file}[0] time 2026-03-01T00:00:03Z: {found['predictions'][0]['class']}"


def test_values_and_damaged_lines_are_treated_as_in_training(agent, state_dir):
    text = ["when,light,sound,mode", *lines(label=",day")]
    text[4] = text[4].replace(",day", ",1_0,day")
    text[2] = "2026-03-01T00:00:01,,-1,day"
    file = state_dir / "new.csv"
    file.write_text("\n".join(text) + "\n")
    ended = agent("predict", file, "--state-dir", state_dir, "--json")
    found = json.loads(ended.out)
    assert any("lines damaged: 1, left out, of 9" in one for one in found["warnings"])
    trained, predicted = read(file, FORM), PersonalModel.open(state_dir, TASK).examples(file)
    np.testing.assert_array_equal(trained.x, predicted.x)
    assert trained.times is not None and predicted.times is not None
    assert trained.times.tolist() == predicted.times.tolist()
    assert len(found["predictions"]) == len(trained) == 1


def test_frame_array_and_folder_are_taken_from_python(state_dir, tmp_path):
    model = PersonalModel.open(state_dir, TASK)
    folder = tmp_path / "day"
    folder.mkdir()
    (folder / "one.csv").write_text("\n".join(TEXTS["header"]) + "\n")
    frame = pd.read_csv(folder / "one.csv")
    outputs = model.predict(folder)
    np.testing.assert_array_equal(model.predict(model.examples(frame)), outputs)
    np.testing.assert_array_equal(model.predict(frame), outputs)
    np.testing.assert_array_equal(model.predict(model.examples(frame[["light", "sound"]].to_numpy())), outputs)
    assert len(model.classify(str(folder / "one.csv"))) == 3


def test_frame_with_target_and_groups_is_cut_into_windows_as_a_file(tmp_path):
    """No window crosses from one person to another, and a target `t` is no time."""
    form = ReadingsFormat(["light"], "t", time="when", group="who", window=4)
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx_of(TOY, (12,)), readings=form)
    model = PersonalModel.open(tmp_path)
    count = 12
    frame = pd.DataFrame({"who": ["ann", "bob"] * count, "when": np.arange(2 * count) // 2, "light": range(2 * count)})
    frame["t"] = 20 - frame.light / 10
    for given in (frame, frame.drop(columns="when")):
        given.to_csv(tmp_path / "new.csv", index=False)
        of_frame, of_file = model.examples(given), model.examples(tmp_path / "new.csv")
        np.testing.assert_array_equal(of_frame.x, of_file.x)
        assert (of_frame.times is None) == (of_file.times is None)
    assert len(model.examples(frame)) == 6 and (np.diff(model.examples(frame).x) == 2).all()


def test_error_of_shape_names_the_axes_in_order(state_dir):
    model = PersonalModel.open(state_dir, TASK)
    axes = r"the model takes \(n examples, 2 inputs \(light, sound\), 4 readings\)"
    with pytest.raises(
        DataError, match=rf"raw inputs have shape \(9, 2\), {axes}; these are readings: PersonalModel\.examples cuts"
    ):
        model.predict(np.zeros((9, 2), np.float32))
    with pytest.raises(
        DataError, match=rf"inputs have shape \(1, 4, 2\), {axes}; give one example along the first axis"
    ):
        model.predict(np.zeros((1, 4, 2), np.float32), prepared=True)


def test_window_with_a_missing_input_is_left_out_where_no_prepare_fills_it(tmp_path, caplog):
    form = ReadingsFormat(["light"], "mode", ["day", "night"], window=12)
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx_of(TOY, (12,)), readings=form, input_shape=(1, 12))
    model = PersonalModel.open(tmp_path)
    (tmp_path / "new.csv").write_text("light\n" + "".join(f"{'' if i == 15 else i},\n" for i in range(36)))
    found = model.examples(tmp_path / "new.csv")
    assert found.x[:, 0, 0].tolist() == [0, 24]
    words = "examples with a missing input: 1 of 3, left out; the first: new.csv, line 25"
    assert words in found.notes and words in caplog.text


def test_file_of_an_array_with_another_shape_names_the_axes_in_order(agent, state_dir):
    np.save(state_dir / "new.npy", np.zeros((9, 2), np.float32))
    ended = agent("predict", state_dir / "new.npy", "--state-dir", state_dir)
    assert ended.code == 1 and "takes shape (n examples, 2 inputs (light, sound), 4 readings)" in ended.err
    assert "these are readings: give them as CSV, which is cut into windows" in ended.err


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.ma.masked_greater(np.ones((1, 2, 4)), 0), "masked values"),
        ([np.ma.masked_greater(np.ones((2, 4)), 0)], "masked values"),
        ([[[1.0] * 4, [1.0] * 3]], "its rows differ in length"),
        (np.full((1, 2, 4), "1_0"), "holds '1_0' \\(text\\), no numbers"),
        (np.array([[[True, 0.5, 1, 1], [1, 1, 1, 1]]], object), "True or False beside other values"),
        (np.ones((1, 2, 4)) * 1j, "complex"),
    ],
)
def test_what_training_refuses_as_numbers_is_refused_in_prediction_too(state_dir, inputs, words, prepared):
    model = PersonalModel.open(state_dir, TASK)
    with pytest.raises(DataError, match=f"inputs: the array .*{words}"):
        model.predict(inputs, prepared=prepared)


def test_model_of_a_task_without_readings_names_the_remedy(tmp_path):
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx_of(TOY, (12,)))
    with pytest.raises(UsageError, match=r"does not declare its readings; give it Task\(\.\.\., readings="):
        PersonalModel.open(tmp_path, TOY).examples("x.csv")
