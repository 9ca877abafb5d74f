"""`fedpatch check-task` and `fedpatch-agent check-task`: every check, its output, and the exit code."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.diagnostics.checks import Checkup, Finding
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.task_checks import check_task
from fedpatch.shared.task_checks.check_task import Question, examine_task
from fedpatch.shared.task_checks.command import default_plan
from fedpatch.shared.task_checks.trial_update import ENCODING
from fedpatch.shared.tasks import examples, metrics, splits
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import CONTROL
from tests.shared.prepared_task import REFERENCE, TASK, build_model
from tests.support.frozen_tasks import FILE, FROM_FILE, base_file
from tests.support.frozen_tasks import TASK as FROZEN

PLAN = TrainPlan("adam", 0.01, 20, moments=MOMENTS)


def _fail() -> Any:
    raise KeyError("x")


def _findings(
    task: Task, spec: str = "good", private: str = "affine", plan: TrainPlan | None = PLAN
) -> dict[str, Finding]:
    checkup = Checkup(lambda _: None, lambda _: None)
    examine_task(Question(task, spec, Path("/nonexistent"), private, plan), checkup)
    for one in checkup.findings:
        assert not one.remedy or one.remedy != one.detail
    return {one.name: one for one in checkup.findings}


@pytest.mark.medium
def test_a_task_that_fits_passes_every_check():
    found = _findings(TASK)
    assert {one.verdict for one in found.values()} == {"ok"}
    assert set(found) == {
        *("task", "model", "patch", "data", "prepare", "dtype", "shapes", "values", "classes"),
        *("inputs", "split", "step", "metric", "memory", "update", "onnx"),
    }
    assert "built twice with the same names" in found["model"].detail
    assert "ms a minibatch of 20" in found["step"].detail
    assert "steps of adam with learning rate 0.01 take the loss from" in found["update"].detail
    assert "low" in found["classes"].detail and "high" in found["classes"].detail


def test_frozen_values_are_counted_and_their_source_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPATCH_DATA", str(tmp_path))
    made = _findings(FROZEN, "n=25,test=9,seed=1")["frozen"]
    assert made.verdict == "ok"
    assert made.detail.startswith("2 tensors (520 B, digest ")
    assert made.detail.endswith("'base.bias', 'base.weight', of build_model")
    path = FILE.path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(base_file())
    assert _findings(FROM_FILE, "n=25,test=9,seed=1")["frozen"].detail.endswith(", of frozen/base.npz")
    path.unlink()
    assert "bring it here by other means" in _findings(FROM_FILE)["model"].detail


@pytest.mark.parametrize(
    ("spec", "check", "words", "remedy"),
    [
        (
            "inf",
            "values",
            "train_x of data 'inf' holds inf in row 12 (file readings.csv, line 13)",
            "remove or fill it",
        ),
        ("labels", "labels", "holds label 5 in row 7 (file readings.csv, line 8); there are 2 classes", "number the 2"),
        ("shape", "prepare", "prepare of task 'prepared' failed", "correct prepare"),
        ("words", "dtype", "no numbers", "return arrays of float32"),
        ("bug", "data", "load_data failed for data 'bug': KeyError", "(prepared_task.py, line "),
        ("shape of the plain", "shapes", "declares input_shape (3,)", "reshape them in load_data"),
    ],
)
def test_data_that_do_not_fit_fail_the_check_of_that_name(spec, check, words, remedy):
    task = TASK
    if spec == "inf":
        task = replace(TASK, prepare=None)
    if spec == "shape of the plain":
        task, spec = replace(TASK, prepare=None), "shape"
    one = _findings(task, spec)[check]
    assert one.verdict == "fail"
    assert words in one.detail
    assert remedy in one.remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (UsageError("'kitchn' is no folder"), "correct --data, or put the files below /nonexistent (--data-root names"),
        (DataError("a.csv: no column light"), "correct or complete the files below /nonexistent (--data-root names"),
    ],
)
def test_the_remedy_for_data_is_for_the_spec_or_for_the_files(error, remedy):
    def load_data(_spec: str, _root: Path) -> Any:
        raise error

    one = _findings(replace(TASK, load_data=load_data))["data"]
    assert (one.verdict, one.detail) == ("fail", str(error))
    assert one.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("spec", "check", "words"),
    [
        ("one class", "classes", "1 of 2 classes in training: high 120"),
        ("rare", "classes", "to answer 'low' always is right in 97%"),
        ("twice", "split", "9 of 60 test examples are training examples too"),
    ],
)
def test_data_that_mislead_warn(spec, check, words):
    one = _findings(TASK, spec)[check]
    assert one.verdict == "warn"
    assert words in one.detail and one.remedy


def test_metric_that_is_infinite_before_any_training_warns():
    """A model may become finite by training; a division by a target of zero stays infinite, and fails each round."""
    endless = replace(TASK, metric=lambda *_: math.inf, metric_name="MAPE", metric_goal="min", metric_range=None)
    found = _findings(endless)["metric"]
    assert (found.verdict, "not finite" in found.detail) == ("warn", True)
    assert "a division by targets of zero" in found.remedy


@pytest.mark.parametrize("turned", [False, True], ids=["inputs first", "readings first"])
@pytest.mark.parametrize("stride", [5, 17, 20])
@pytest.mark.parametrize("part", ["test", "val"])
def test_windows_that_overlap_and_were_split_by_hand_warn(part, stride, turned):
    series = examples.from_arrays(np.random.default_rng(1).normal(size=(2000, 3)), np.arange(2000) % 2)
    found = examples.windows(series, 20, stride)
    tested = splits.random_split(len(found))
    x = found.x.transpose(0, 2, 1) if turned else found.x
    parts: dict[str, Any] = {"train_x": x[~tested], "train_y": found.y[~tested]} | {
        f"{part}_x": x[tested],
        f"{part}_y": found.y[tested],
    }
    if part == "val":
        parts |= {"test_x": parts["val_x"] + 9, "test_y": parts["val_y"]}
    data = DeviceData(**parts)
    checkup = Checkup(lambda _: None, lambda _: None)
    check_task._check_inputs(Question(TASK, "good", Path("/nonexistent")), data, nn.BatchNorm1d(3), checkup)
    found_split = [one for one in checkup.findings if one.name == "split"][-1]
    word = "validation" if part == "val" else part
    if stride == 20:
        assert (found_split.verdict, found_split.detail) == ("ok", f"no {word} example is a training example")
    else:
        assert found_split.verdict == "warn" and "share readings with training examples" in found_split.detail
        assert f"of {tested.sum()} {word} examples" in found_split.detail and "block_split" in found_split.remedy


@pytest.mark.parametrize("digits", [0, 1])
def test_days_of_a_coarse_sensor_are_no_windows_that_overlap(digits):
    """Three temperatures in a row, to a tenth of a degree, are those of another day by chance."""
    rng = np.random.default_rng(0)
    usual = 15 + 8 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    days = np.round(usual + rng.normal(0, 2, (1000, 1)) + rng.normal(0, 0.4, (1000, 24)), digits)
    x, y = days[:, None].astype(np.float32), np.arange(1000) % 2
    checkup = Checkup(lambda _: None, lambda _: None)
    data = DeviceData(x[200:], y[200:], x[:200], y[:200])
    check_task._check_inputs(Question(TASK, "good", Path("/nonexistent")), data, nn.BatchNorm1d(1), checkup)
    assert [one.verdict for one in checkup.findings if one.name == "split"] == ["ok"]


def _changed(**changes: Any) -> Task:
    """The task whose data of the spec "good" are changed by functions of them."""

    def load(spec: str, root: Path) -> DeviceData:
        data = TASK.load_data(spec, root)
        return replace(data, **{name: change(data) for name, change in changes.items()})

    return replace(TASK, load_data=load)


def test_validation_data_without_a_class_of_the_test_data_warn_with_its_name():
    task = _changed(val_x=lambda data: data.test_x[:20], val_y=lambda data: np.zeros(20, np.int64))
    found = _findings(task)["validation"]
    assert found.verdict == "warn"
    assert found.detail.startswith(f"20 validation examples lack {task.class_names[1]} of the classes of the test data")


def test_metric_without_a_value_on_validation_data_fails():
    def metric(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float("nan") if len(targets.unique()) == 1 else 0.5

    task = _changed(val_x=lambda data: data.test_x[:20], val_y=lambda data: np.zeros(20, np.int64))
    checkup = Checkup(lambda _: None, lambda _: None)
    examine_task(Question(replace(task, metric=metric), "good", Path("/nonexistent"), "affine", PLAN), checkup)
    assert ("validation", "fail") in {(one.name, one.verdict) for one in checkup.findings}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (slice(10, 40), "one row repeats 30 times in train_x, from row 10 (file readings.csv, line 11) on"),
        ("zero", "12 of 120 rows of train_x are all zero, the first in row 3 (file readings.csv, line 4)"),
    ],
)
def test_rows_of_a_sensor_that_is_stuck_or_off_warn(rows, words):
    def stuck(data: DeviceData) -> np.ndarray:
        x = data.train_x.copy()
        x[3 : 15 if rows == "zero" else 3] = 0
        if rows != "zero":
            x[rows] = x[10]
        return x

    found = _findings(replace(_changed(train_x=stuck), prepare=None))["rows"]
    assert (found.verdict, found.detail) == ("warn", words)


def test_inputs_are_named_by_their_columns():
    names = {"input_names": lambda data: ("XAVG", "YAVG", "ZAVG")}

    def constant(data: DeviceData) -> np.ndarray:
        x = data.train_x.copy()
        x[:, 1] = 0.5
        return x

    normed = replace(
        _changed(train_x=constant, **names), build_model=lambda: nn.Sequential(nn.BatchNorm1d(3), build_model())
    )
    assert _findings(replace(normed, prepare=None))["inputs"].detail == "input YAVG has one value in all of train_x"
    missing = _changed(train_x=lambda data: np.where(data.train_x == data.train_x[4, 2], np.nan, data.train_x), **names)
    assert (
        "holds NaN in row 4 (file readings.csv, line 5), input ZAVG"
        in _findings(replace(missing, prepare=None))["values"].detail
    )


def test_rows_that_the_reader_left_out_warn():
    found = _findings(_changed(notes=lambda data: ("monday.csv: lines damaged: 3, left out",)))["left out"]
    assert (found.verdict, found.detail) == ("warn", "monday.csv: lines damaged: 3, left out")


def test_many_classes_are_counted():
    many = tuple(f"c{i}" for i in range(12))
    task = replace(
        _changed(train_y=lambda data: np.arange(len(data.train_y)) % 12), class_names=many, metric=lambda *_: 0.5
    )
    task = replace(task, build_model=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 12)))
    assert _findings(task)["classes"].detail.endswith("c6 10, c7 10 and 4 more")


def test_a_test_class_that_is_never_trained_on_warns():
    def load(spec: str, root: Path) -> Any:
        data = TASK.load_data(spec, root)
        return replace(data, train_y=np.zeros_like(data.train_y))

    found = _findings(replace(TASK, load_data=load, class_names=("low", "high")))
    assert found["classes"].verdict == "warn"


def test_a_cast_is_named():
    one = _findings(replace(TASK, prepare=None), "float64")["dtype"]
    assert one.verdict == "ok"
    assert "train_x of data 'float64' is float64 and is cast to float32" in one.detail


def test_raw_inputs_before_a_model_without_batch_norm_warn():
    raw = replace(TASK, prepare=None)
    assert "scale them in the task's `prepare`" in _findings(raw)["inputs"].remedy
    normed = replace(raw, build_model=lambda: nn.Sequential(nn.BatchNorm1d(3), build_model()))
    assert _findings(normed)["inputs"].verdict == "ok"


def test_a_prepare_that_looks_at_other_rows_fails():
    """In prediction there may be only one row."""
    task = replace(TASK, prepare=lambda raw: (raw - raw.mean(axis=0)) / (raw.std(axis=0) + 1))
    one = _findings(task)["prepare"]
    assert one.verdict == "fail" and "scale by constants" in one.remedy


@pytest.mark.parametrize(
    ("private", "verdict", "words"),
    [
        ("all", "ok", "tensors stay on the device"),
        ("none", "ok", "no tensor stays on the device"),
        ("names:fc2.*", "ok", "2 of 9 tensors stay on the device"),
        ("names:fc9.*", "fail", "matches no tensor"),
    ],
)
def test_the_patch_policy_is_compared_with_the_model(private, verdict, words):
    one = _findings(TASK, private=private)["patch"]
    assert (one.verdict, words in one.detail) == (verdict, True), one


def test_a_model_without_batch_norm_fails_a_policy_of_batch_norm():
    task = replace(TASK, build_model=lambda: nn.Linear(3, 2))
    one = _findings(task)["patch"]
    assert one.verdict == "fail" and "no batch norm" in one.detail
    assert "put a batch norm into the model, or choose --private none or names:" in one.remedy
    assert _findings(task, private="none")["patch"].verdict == "ok"


def test_a_loss_and_a_metric_that_fail_are_named():
    found = _findings(replace(TASK, loss=lambda outputs, targets: _fail()))
    assert found["step"].verdict == "fail" and "onnx" not in found
    found = _findings(replace(TASK, metric=metrics.mae))
    assert found["metric"].verdict == "fail"


def test_both_commands_check_alike(agent, tmp_path):
    done = agent("check-task", REFERENCE, "--json")
    document = json.loads(done.out)
    assert (done.code, document["ok"]) == (0, True), done
    assert "step" in [one["name"] for one in document["findings"]]


def test_a_failed_check_ends_with_1_and_wrong_usage_with_2(agent):
    failed = agent("check-task", REFERENCE, "--data", "labels")
    assert failed.code == 1 and "fail  labels" in failed.out and "remedy: number the 2 classes" in failed.out
    assert "Traceback" not in failed.out + failed.err
    for arguments in (("no_such_task",), (REFERENCE, "--private", "nonsense")):
        wrong = agent("check-task", *arguments)
        assert (wrong.code, wrong.out) == (2, "")


def test_fedpatch_has_the_command_too(fedpatch):
    ended = fedpatch("check-task", REFERENCE, "--data", "bug", "--json")
    assert ended.code == 1
    assert [one["verdict"] for one in json.loads(ended.out)["findings"] if one["name"] == "data"] == ["fail"]


def test_a_task_without_a_demo_needs_data(agent, monkeypatch):
    module = sys.modules["tests.shared.prepared_task"]
    monkeypatch.setattr(module, "TASK", replace(TASK, demo_data=""))
    ended = agent("check-task", REFERENCE)
    assert ended.code == 2 and "name a device's data with --data" in ended.err


def test_learning_rate_with_which_training_diverges_fails_the_check_of_the_update():
    found = _findings(TASK, plan=replace(PLAN, client_optimizer="sgd", moments=(), learning_rate=1e3 * 1e30))["update"]
    assert found.verdict == "fail"
    assert "the loss was nan at step 2 of sgd" in found.detail or "not finite" in found.detail
    assert "smaller learning rate" in found.remedy


def test_task_in_large_units_passes_the_check_of_the_update():
    """Targets of 1e5 and inputs of 1e4 give second moments above 1e17."""

    def load_data(_spec: str, _root: Path) -> DeviceData:
        rng = np.random.default_rng(1)
        x, y = (1e4 * rng.random((40, 3))).astype(np.float32), (1e5 * (1 + rng.random(40))).astype(np.float32)
        return DeviceData(x[:30], y[:30], x[30:], y[30:])

    task = Task(
        "pressure",
        "a pressure in Pa",
        lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)),
        load_data,
        lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean(),
        lambda outputs, targets: float((outputs[:, 0] - targets).abs().mean()),
        metric_name="mae",
        metric_goal="min",
        metric_range=None,
    )
    assert _findings(task, private="none")["update"].verdict == "ok"


def test_outputs_that_are_not_finite_before_any_training_fail_the_check_of_the_metric():
    class Odd(nn.Module):
        """A model that fails on the inputs of the test data alone."""

        def __init__(self) -> None:
            super().__init__()
            self.module = build_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.module(x)
            return outputs if self.training else outputs / 0.0

    found = _findings(replace(TASK, build_model=Odd))["metric"]
    assert found.verdict == "fail" and "are not all finite before any training" in found.detail


def test_buffer_that_becomes_infinite_fails_the_check_of_the_update_with_its_name():
    class Lowest(nn.Module):
        """A model that keeps the least value that it has seen."""

        lowest: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.module = build_model()
            self.register_buffer("lowest", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.lowest = self.lowest - torch.inf
            outputs: torch.Tensor = self.module(x)
            return outputs

    found = _findings(replace(TASK, build_model=Lowest))["update"]
    assert found.verdict == "fail"
    assert "lowest: 1 of 1 values are not finite; it is not trained, but the model changes it" in found.detail


@pytest.mark.parametrize("plan", [replace(PLAN, moments=()), TrainPlan("sgd", 0.1, 20, moments=(CONTROL,))], ids=str)
def test_every_kind_of_plan_is_tried(plan):
    assert _findings(TASK, plan=plan)["update"].verdict == "ok"


def test_without_a_learning_rate_no_update_is_tried():
    assert _findings(TASK, plan=None)["update"].verdict == "skip"


def test_trial_of_a_device_has_the_plan_and_the_encoding_of_a_run_with_default_settings():
    usual = RunSettings()
    plan = find_strategy(usual.strategy).plan(0.25, TASK.batch_size, usual.epochs, usual.steps, usual.seed)
    assert default_plan(replace(TASK, learning_rates={"fedavg": 0.25})) == plan
    assert usual.encoding == ENCODING
