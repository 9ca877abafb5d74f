"""The previous personal model, and the models that replace it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from fedpatch.device_agent.models.store import StoredModel
from fedpatch.shared.tasks.model_metadata import MODEL_FILE
from tests.device_agent.exporting_device import VALIDATION, Device, task_scored, without_validation


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
