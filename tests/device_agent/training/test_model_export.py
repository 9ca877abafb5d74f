"""The result of a round for the applications of the device: the trained model, if it is good enough."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpatch.device_agent.models.personal import PersonalModel
from fedpatch.device_agent.models.store import ModelStore, StoredModel
from fedpatch.device_agent.state.model_cache import ModelCache
from fedpatch.device_agent.state.patch_store import PERSONAL, PatchKey, PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.errors import StateError
from fedpatch.shared.tasks.model_metadata import MODEL_FILE
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import load_tensors, to_tensors
from fedpatch.shared.wire.messages import UpdateReport, is_delta
from fedpatch.shared.wire.plan_terms import PersonalCopy, make_terms
from tests.device_agent.device_rounds import ADAM, POLICIES, Scene
from tests.device_agent.toy_tasks import TOY, random_data

VALIDATION = 15


class Device:
    """A device with a store of models, which treats every update as committed."""

    def __init__(self, folder: Path, task: Task = TOY, private: str = "affine", keep_margin: float = 1.0) -> None:
        self.scene = Scene(folder, task, ADAM, private)
        held_out = random_data("ann", 24)
        self.data = replace(
            random_data("ann", 23), val_x=held_out.test_x[:VALIDATION], val_y=held_out.test_y[:VALIDATION]
        )
        self.trainer = LocalTrainer(task, self.data)
        self.models = ModelStore(folder / "models", 3)
        export = ModelExport(self.trainer, ModelStore(folder / "models"), keep_margin)
        store = PatchStore(folder / "patches")
        self.local_update = LocalUpdate(self.trainer, store, "ann", export=export, private=private)

    def train(self, round: int, **changes: Any) -> UpdateReport:
        done = self.local_update.run(self.scene.command(round=round, **changes), lambda *_: None, lambda: False)
        assert done is not None
        self.local_update.make_model()
        return done[1]

    def play(self, round: int, **changes: Any) -> UpdateReport:
        report = self.train(round, **changes)
        self.models.publish("toy", "run", round)
        return report

    @property
    def personal(self) -> PersonalModel:
        path = self.models.current("toy")
        assert path is not None
        return PersonalModel(path)


def task_scored(left: list[float], goal: str = "max") -> Task:
    """The toy task with a metric that returns the numbers in `left`, in turn.

    Order: before and after training; the new model on test data and on validation data; the present one on validation data.
    """
    task = replace(TOY, metric=lambda outputs, targets: left.pop(0))
    object.__setattr__(task, "metric_goal", goal)
    return task


@pytest.mark.parametrize("private", POLICIES)
def test_a_round_leaves_the_model_that_it_trained(tmp_path, private):
    """Global values and patch, both after training: the outputs are those of the trained module, with every policy."""
    device = Device(tmp_path, private=private)
    report = device.play(1)
    personal = device.personal
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    np.testing.assert_allclose(personal.predict(device.data.test_x), expected, atol=1e-4)
    known = personal.metadata
    assert (known.kind, known.task, known.run, known.round, known.private) == ("personal", "toy", "run", 1, private)
    assert known.private_values == ("none" if private == "none" else "trained")
    assert (known.user_accuracy_before, known.user_accuracy) == (
        report.user_accuracy_before,
        report.user_accuracy_after,
    )
    assert (known.schema, known.test_examples) == (device.trainer.schema.digest, 20)
    assert (known.input_shape, known.input_dtype, known.output_shape) == ((12,), "float32", (3,))


def test_the_model_holds_this_devices_patch_and_not_the_initial_one(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    inputs = device.data.test_x
    before = device.personal.predict(inputs)
    initial = {"bn.weight": np.ones(8, np.float32), "bn.bias": np.zeros(8, np.float32)}
    load_tensors(device.trainer.model, to_tensors(device.trainer.model) | initial)
    with torch.no_grad():
        assert np.abs(device.trainer.model.eval()(torch.from_numpy(inputs)).numpy() - before).max() > 0.01


@pytest.mark.parametrize(
    ("goal", "present", "new", "stays"),
    [
        ("max", 0.8, 0.81, False),
        ("max", 0.8, 0.8, False),
        ("max", 0.8, 0.71, False),
        ("max", 0.8, 0.69, True),
        ("max", 0.8, 0.0, True),
        ("min", 0.4, 0.3, False),
        ("min", 0.4, 0.49, False),
        ("min", 0.4, 0.51, True),
        ("min", 0.0, 1.0, True),
    ],
)
def test_a_worse_model_does_not_replace_the_present_one(tmp_path, caplog, goal, present, new, stays):
    """Beyond the margin of 0.1, for both goals of a metric; log and note report it, and the update is sent nevertheless."""
    left = [0.5, 0.5, 0.9, 0.9]
    device = Device(tmp_path, task_scored(left, goal), keep_margin=0.1)
    device.play(1)
    left += [0.5, 0.5, 0.77, new, present]
    with caplog.at_level(logging.INFO, logger="fedpatch.models"):
        device.play(2)
    assert left == []
    assert all(record.levelno == logging.INFO for record in caplog.records)
    assert device.personal.metadata.round == (1 if stays else 2)
    assert (tmp_path / "update").exists()
    kept = device.models.kept("toy")
    if stays:
        assert isinstance(kept, StoredModel)
        assert (kept.run, kept.round) == ("run", 2)
        assert f"accuracy {new:.4g} of round 2 is worse than the present model's {present:.4g}" in kept.why
        assert f"on {VALIDATION} validation examples" in kept.why
        assert kept.why in caplog.text
    else:
        assert kept is None
        known = device.personal.metadata
        assert (known.user_accuracy, known.validation_accuracy, known.validation_examples) == (0.77, new, VALIDATION)


@pytest.mark.parametrize(("goal", "sign"), [("max", 1), ("min", -1)])
def test_models_that_each_lose_less_than_the_margin_do_not_add_up_to_more(tmp_path, goal, sign):
    left: list[float] = []
    device = Device(tmp_path, task_scored(left, goal), keep_margin=0.1)
    figures = [0.5 + sign * change for change in (0.4, 0.34, 0.28, 0.31)]
    present = None
    for round, figure in enumerate(figures, 1):
        left += [0.5, 0.5, 0.77, figure] + ([] if present is None else [present])
        device.play(round)
        if device.personal.metadata.round == round:
            present = figure
    kept = device.models.kept("toy")
    assert kept is None and device.personal.metadata.round == 4
    assert device.personal.metadata.best == figures[0]
    left += [0.5, 0.5, 0.77, figures[2], figures[3]]
    device.play(5)
    kept = device.models.kept("toy")
    assert kept is not None and f"is worse than an earlier model's {figures[0]:.4g} by more than" in kept.why


def test_best_figure_is_forgotten_with_the_data_that_it_was_measured_on(tmp_path):
    left = [0.5, 0.5, 0.9, 0.9]
    device = Device(tmp_path, task_scored(left), keep_margin=0.1)
    device.play(1)
    left += [0.5, 0.5, 0.6, 0.55, 0.6]
    device.play(2)
    assert (device.personal.metadata.round, device.personal.metadata.best) == (2, 0.6)


@pytest.mark.parametrize(
    ("count", "figures"), [(10, [0.7, 0.82, 0.9]), (0, [0.82, 0.7])], ids=["fewer", "test data instead"]
)
def test_best_figure_is_forgotten_with_its_data_though_the_present_model_has_the_same_figure(tmp_path, count, figures):
    """An accuracy of few examples is often the same by chance; else a best of other data might keep a model for ever."""
    left = [0.5, 0.5, 0.7, 0.95]
    device = Device(tmp_path, task_scored(left), keep_margin=0.1)
    device.play(1)
    left += [0.5, 0.5, 0.7, 0.9, 0.95]
    device.play(2)
    assert device.personal.metadata.best == 0.95
    held_out = device.trainer.validation_data
    assert held_out is not None
    device.trainer.validation_data = (held_out[0][:count], held_out[1][:count]) if count else None
    left += [0.5, 0.5, *figures]
    device.play(3)
    assert left == [] and device.personal.metadata.round == 3


def test_the_present_model_is_measured_anew(tmp_path):
    """A score on other data does not count: two models are compared on the same data."""
    left = [0.5, 0.5, 0.9, 0.9]
    device = Device(tmp_path, task_scored(left), keep_margin=0.1)
    device.play(1)
    left += [0.5, 0.5, 0.6, 0.6, 0.55]
    device.play(2)
    assert (device.personal.metadata.round, device.personal.metadata.user_accuracy) == (2, 0.6)


def test_a_round_that_is_not_committed_changes_nothing(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    device.train(2)
    assert device.personal.metadata.round == 1
    device.train(3)
    assert device.models.publish("toy", "run", 2) is None
    assert device.models.publish("toy", "run", 3) is not None
    assert device.personal.metadata.round == 3


def test_a_cancelled_round_leaves_no_model(tmp_path):
    device = Device(tmp_path)
    assert device.local_update.run(device.scene.command(), lambda *_: None, lambda: True) is None
    assert device.models.publish("toy", "run", 1) is None


def test_cancelled_round_makes_the_update_and_no_model(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    command = device.scene.command(round=2)
    assert device.local_update.run(command, lambda *_: None, lambda: False) is not None
    assert (tmp_path / "update").exists()
    device.local_update.make_model(lambda: True)
    assert device.models.publish("toy", "run", 2) is None
    assert device.models.kept("toy") == StoredModel("run", 2, "work had to stop before it was made")
    device.play(3)
    assert device.personal.metadata.round == 3


def test_a_model_that_cannot_be_exported_costs_no_round(tmp_path, caplog):
    device = Device(tmp_path)
    device.play(1)
    device.trainer.task = replace(TOY, class_names=("a", "b"))
    assert device.play(2).steps == 5
    assert "names 2 classes, but its model gives outputs of shape (3,)" in caplog.text
    device.trainer.task = replace(TOY, metric=_failing_third())
    assert device.play(3).steps == 5
    assert "ZeroDivisionError" in caplog.text
    kept = device.models.kept("toy")
    assert kept is not None
    assert kept.round == 3
    assert device.personal.metadata.round == 1


def _failing_third() -> Any:
    left = [0.5, 0.5]

    def metric(outputs: Any, targets: Any) -> float:
        return left.pop() if left else 1 / 0

    return metric


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_model_whose_test_figure_is_no_number_is_not_published(tmp_path, score):
    left = [0.5, 0.5, score]
    device = Device(tmp_path, task_scored(left))
    device.play(1)
    assert device.models.current("toy") is None


@pytest.mark.parametrize(
    ("new", "present", "stays"), [(float("nan"), 0.1, True), (0.1, float("nan"), False), (float("nan"),) * 2 + (False,)]
)
def test_a_validation_figure_that_is_no_number_loses_against_one(tmp_path, new, present, stays):
    """If neither is a number, as of a metric that is undefined with one class, the newest model is published."""
    left = [0.5, 0.5, 0.9, 0.9]
    device = Device(tmp_path, task_scored(left))
    device.play(1)
    left += [0.5, 0.5, 0.9, new, present]
    device.play(2)
    assert (device.personal.metadata.round, left) == (1 if stays else 2, [])
    if stays:
        kept = device.models.kept("toy")
        assert kept is not None and "is no number on 15 validation examples" in kept.why


def test_model_made_without_validation_data_is_replaced_once_there_are_some(tmp_path):
    """It was trained on them, so it would look too good on them."""
    device = Device(tmp_path, keep_margin=0.0)
    for round, data in ((1, without_validation(device)), (2, device.data)):
        device.trainer.take(data)
        device.trainer.task = task_scored([1.0 - round / 10] * 5)
        device.play(round)
        known = device.personal.metadata
        assert (known.round, known.user_accuracy) == (round, 1.0 - round / 10)
    assert known.validation_examples == VALIDATION


@pytest.mark.parametrize(("figure", "stays"), [(0.89, True), (0.91, False)])
def test_without_validation_data_a_model_that_is_worse_on_test_data_replaces_none(tmp_path, figure, stays):
    device = Device(tmp_path, keep_margin=0.0)
    device.trainer.take(without_validation(device))
    for round, measured in ((1, [0.9] * 3), (2, [0.5, 0.5, figure, 0.9])):
        device.trainer.task = task_scored(measured)
        device.play(round)
    kept = device.models.kept("toy")
    assert (device.personal.metadata.round, kept is not None) == (1 if stays else 2, stays)
    assert kept is None or "test examples, without validation data" in kept.why


def without_validation(device: Device) -> Any:
    return replace(device.data, val_x=device.data.train_x[:0], val_y=device.data.train_y[:0])


def test_a_present_model_that_the_metric_cannot_take_is_replaced(tmp_path, caplog):
    device = Device(tmp_path)
    device.play(1)
    calls = []

    def metric(outputs, targets):
        calls.append(len(targets))
        if (
            len(calls) == 5
        ):  # before training and after, the new model on test and on validation data; now the present one
            raise ValueError("another shape")
        return 0.5

    device.trainer.task = replace(device.trainer.task, metric=metric)
    device.play(2)
    assert len(calls) == 5
    assert device.personal.metadata.round == 2
    assert "cannot be used, and is replaced: ValueError: another shape" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "gone", "link"])
def test_a_damaged_present_model_is_replaced(tmp_path, caplog, damage):
    device = Device(tmp_path)
    device.play(1)
    file = device.personal.path / MODEL_FILE
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "gone":
        file.unlink()
    else:
        (tmp_path / "models" / "toy" / "current").unlink()
    device.play(2)
    assert device.personal.metadata.round == 2
    assert ("cannot be used, and is replaced" in caplog.text) == (damage != "link")


def test_a_device_that_does_not_count_has_a_model_all_the_same(tmp_path):
    device = Device(tmp_path)
    device.trainer.counts_in_ua = False
    assert device.play(1).user_accuracy_after is None
    known = device.personal.metadata
    assert known.user_accuracy_before is None
    assert known.user_accuracy is not None


def test_a_disk_that_refuses_costs_no_round(tmp_path, caplog, monkeypatch):
    device = Device(tmp_path)
    device.play(1)

    def refuse(*_: object) -> None:
        raise StateError("models: no space left; free some space on this disk")

    monkeypatch.setattr(ModelStore, "stage", refuse)
    assert device.play(2).steps == 5
    assert "round 2 gives no other: models: no space left" in caplog.text
    assert device.personal.metadata.round == 1


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_an_export_that_ends_its_process_is_given_up(tmp_path, caplog, deaths):
    """After the second time rounds continue without a model. An agent tries it again after its next start."""
    device = Device(tmp_path)
    device.models.prepare("toy")
    for _ in range(deaths):
        device.models.attempts.begin("toy", 9)  # an attempt that never finishes
    assert device.play(1).steps == 5
    assert (device.models.current("toy") is None) == (deaths >= 2)
    assert ("ended its process 2 times" in caplog.text) == (deaths >= 2)
    device.models.attempts.forget()
    device.play(2)
    assert device.personal.metadata.round == 2


def test_training_is_the_same_with_and_without_an_export(tmp_path):
    patches = []
    for with_export in (True, False):
        folder = tmp_path / str(with_export)
        folder.mkdir()
        device = Device(folder)
        if not with_export:
            device.local_update._export = None
        for round in (1, 2, 3):
            device.train(round)
        patches.append(b"".join(path.read_bytes() for path in (folder / "patches").glob("*.patch")))
    assert patches[0] == patches[1]


def test_the_metadata_is_json_for_anybody(tmp_path):
    device = Device(tmp_path)
    device.play(1)
    known = json.loads((device.personal.path / "metadata.json").read_text())
    assert known["task"] == "toy"
    assert known["sha256"] == device.personal.metadata.sha256
    assert known["parity"] <= 1e-4


@pytest.mark.parametrize("private", POLICIES)
@pytest.mark.parametrize("encoding", ["fp32+zstd", "delta-int8"])
def test_model_made_again_after_a_restart_is_that_of_the_round(tmp_path, private, encoding):
    """From the waiting update and the patch: exact if the encoding keeps every bit, else as the coordinator has it."""
    device = Device(tmp_path, private=private)
    held = ModelCache(tmp_path / "held")
    store = PatchStore(tmp_path / "patches")
    device.local_update = LocalUpdate(device.trainer, store, "ann", held=held, private=private)
    command = device.scene.command(encoding=encoding, hold=is_delta(encoding))
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    with torch.no_grad():
        trained = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    other = LocalTrainer(TOY, device.data)
    export = ModelExport(other, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(other, store, "ann", export=export, held=held, private=private)
    restarted.make_model_again(replace(command, blob=None), done[0])
    assert device.models.publish("toy", "run", 1) is not None
    found = device.personal.predict(device.data.test_x)
    np.testing.assert_allclose(found, trained, atol=1e-4 if encoding == "fp32+zstd" else 0.1)
    assert device.personal.metadata.user_accuracy_before == done[1].user_accuracy_before


def test_personal_copy_becomes_the_model_after_a_restart_too(tmp_path):
    """The reported accuracies are those of the copy."""
    device = Device(tmp_path, private="none")
    ditto = replace(ADAM, personal=PersonalCopy("ditto", 0.1))
    report = device.play(1, plan=ditto)
    copy = PatchStore(tmp_path / "patches" / PERSONAL).load(
        PatchKey("toy", device.trainer.schema.digest, "none ditto"), "run", 2
    )
    device.trainer.load(copy.values)
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)
    assert device.personal.metadata.user_accuracy == report.user_accuracy_after
    assert device.personal.metadata.private_values == "trained"
    command = device.scene.command(round=2, plan=ditto)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    other = LocalTrainer(TOY, device.data)
    export = ModelExport(other, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(other, PatchStore(tmp_path / "patches"), "ann", export=export, private="none")
    restarted.make_model_again(command, done[0])
    assert device.models.publish("toy", "run", 2) is not None
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)


def outputs_of(device: Device) -> np.ndarray:
    """Outputs of the model that the trainer holds, on the test data."""
    with torch.no_grad():
        found: np.ndarray = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    return found


def test_finished_model_becomes_the_model_after_a_round_and_after_an_evaluate_round(tmp_path):
    """After a restart too; the reported accuracies are those of the finished model."""
    device = Device(tmp_path, private="affine")
    plan = replace(ADAM, **make_terms(0.0, "public:1", finish="private:2"))
    command = device.scene.command(plan=plan)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    expected = outputs_of(device)
    other = LocalTrainer(TOY, device.data)
    export = ModelExport(other, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(other, PatchStore(tmp_path / "patches"), "ann", export=export, private="affine")
    restarted.make_model_again(command, done[0])
    assert device.models.publish("toy", "run", 1) is not None
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)
    assert device.personal.metadata.user_accuracy == done[1].user_accuracy_after
    other_model = {name: (value + 0.5).astype(value.dtype) for name, value in device.scene.initial().items()}
    command = device.scene.command(other_model, round=2, plan=plan, evaluate=True)
    measured = device.local_update.evaluate(command, lambda: False)
    assert measured is not None
    assert np.abs(outputs_of(device) - expected).max() > 0.01
    device.local_update.make_model()
    assert device.models.publish("toy", "run", 2) is not None
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), outputs_of(device), atol=1e-4)
    assert device.personal.metadata.user_accuracy == pytest.approx(measured.user_accuracy)


def test_model_put_off_is_the_one_that_was_trained(tmp_path):
    """While the process lives it does not read the update, which may be gone."""
    device = Device(tmp_path)
    command = device.scene.command(encoding="delta-int8", hold=True)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    (tmp_path / "update").unlink()
    device.local_update.make_model_again(replace(command, blob=None), done[0])
    assert device.models.publish("toy", "run", 1) is not None
    with torch.no_grad():
        expected = device.trainer.model.eval()(torch.from_numpy(device.data.test_x)).numpy()
    np.testing.assert_allclose(device.personal.predict(device.data.test_x), expected, atol=1e-4)


def test_model_that_cannot_be_made_again_costs_a_line_in_the_log(tmp_path, caplog):
    device = Device(tmp_path)
    device.play(1)
    command = device.scene.command(round=2)
    done = device.local_update.run(command, lambda *_: None, lambda: False)
    assert done is not None
    (tmp_path / "update").write_bytes(b"damaged")
    export = ModelExport(device.trainer, ModelStore(tmp_path / "models"), 1.0)
    restarted = LocalUpdate(device.trainer, PatchStore(tmp_path / "patches"), "ann", export=export)
    restarted.make_model_again(command, done[0])
    assert "was switched off before it was made" in caplog.text
    assert device.personal.metadata.round == 1
