"""A trial step: an error of fedpatch names each mismatch before any round."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.task_checks.data_checks import load_checked
from fedpatch.shared.task_checks.trial_training import (
    begins_with_batch_norm,
    require_repeatable,
    require_trainable,
    same_values_for_a_seed,
    step_seconds,
    trial_loss,
)
from fedpatch.shared.tasks import metrics
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.task import DeviceData
from tests.shared.prepared_task import TASK, build_model

DATA = load_checked(TASK, "good", Path(), "device pi-7").data


def _fail() -> Any:
    raise KeyError("x")


def _problem(task: Any, data: DeviceData = DATA) -> str:
    with pytest.raises(DataError) as caught:
        require_trainable(task, data, "device pi-7")
    return str(caught.value)


def test_tasks_that_fit_pass_and_leave_torchs_random_state_alone():
    before = torch.random.get_rng_state()
    require_trainable(TASK, DATA, "device pi-7")
    require_trainable(digits.TASK, digits.TASK.load_data("shard:0/10", Path()), "device pi-7")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_inputs_that_the_model_does_not_take_are_named_with_shape_and_remedy():
    text = _problem(replace(TASK, build_model=lambda: nn.Linear(5, 2), input_shape=()))
    assert "the model of task 'prepared' does not take train_x of device pi-7, float32 of shape (" in text
    assert "declare input_shape" in text


def test_a_model_in_another_dtype_is_named_with_the_declaration_that_it_needs():
    assert "the model's own values are float64: declare input_dtype='float64'" in _problem(
        replace(TASK, build_model=lambda: build_model().to(torch.float64))
    )


def test_a_label_beyond_the_outputs_is_named_where_the_task_names_no_classes():
    """The rows of the trial always include the one with the largest label."""
    y = DATA.train_y.copy()
    y[100] = 7
    text = _problem(replace(TASK, class_names=(), batch_size=5), replace(DATA, train_y=y))
    assert "train_y of device pi-7 holds label 7 in row 100, and the model of task 'prepared' has 2 outputs" in text


def test_class_names_and_outputs_must_agree():
    """Otherwise a prediction could not name the class."""
    text = _problem(replace(TASK, class_names=("a", "b", "c")))
    assert "names 3 classes, but its model gives 2 outputs" in text


def test_floating_targets_of_a_loss_for_classes_are_named():
    data = replace(DATA, train_y=DATA.train_y.astype(np.float32))
    assert "for class numbers return int64 targets or declare class_names" in _problem(
        replace(TASK, class_names=()), data
    )


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (
            lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
            "returned a tensor of shape (20,)",
        ),
        (lambda outputs, targets: 0.5, "returned a float"),
        (lambda outputs, targets: _fail(), "its loss failed for float32 of shape (20, 2) outputs"),
    ],
    ids=["vector", "number", "error"],
)
def test_a_loss_that_gives_no_mean_is_named(loss, problem):
    assert problem in _problem(replace(TASK, loss=loss, batch_size=20), replace(DATA, train_y=np.zeros(120, np.int64)))


@pytest.mark.parametrize(
    ("metric", "problem"),
    [(lambda *_: 93.0, "gave 93 .* must return a fraction from 0 to 1"), (lambda *_: _fail(), "its metric failed for")],
)
def test_a_metric_beyond_its_range_is_named(metric, problem):
    with pytest.raises(DataError, match=problem):
        require_trainable(replace(TASK, metric=metric), DATA, "device pi-7")


def test_a_model_with_other_names_at_each_call_is_refused():
    """Coordinator and devices could not agree on one model."""
    count = iter(range(10))

    def build() -> nn.Module:
        return nn.Sequential(OrderedDict[str, nn.Module]({f"fc{next(count)}": nn.Linear(3, 2)}))

    with pytest.raises(UsageError, match=r"two calls of build_model give different models \('fc0.*in one of them only"):
        require_repeatable(replace(TASK, build_model=build))
    sizes = iter((4, 5))
    with pytest.raises(UsageError, match=r"bias is float32 \(4,\) in one, float32 \(5,\) in the other"):
        require_repeatable(replace(TASK, build_model=lambda: nn.Linear(3, next(sizes))))
    with pytest.raises(UsageError, match="returned a int; return a"):
        require_repeatable(replace(TASK, build_model=lambda: 3))  # type: ignore[arg-type,return-value]


def test_initial_values_that_ignore_the_seed_are_found():
    numbers = iter(range(100))

    def build() -> nn.Module:
        model = build_model()
        nn.init.constant_(model.get_submodule("fc2").bias, next(numbers))  # type: ignore[arg-type]
        return model

    assert same_values_for_a_seed(TASK)
    assert not same_values_for_a_seed(replace(TASK, build_model=build))


def test_a_batch_norm_at_the_beginning_is_found_behind_layers_without_values():
    assert begins_with_batch_norm(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert not begins_with_batch_norm(build_model())


NUMBERS = replace(
    DATA,
    train_y=DATA.train_x[:, 0].copy(),
    test_y=DATA.test_x[:, 0].copy(),
    val_x=DATA.test_x[:0],
    val_y=DATA.test_x[:0, 0],
)
ERROR = replace(
    TASK, build_model=lambda: nn.Linear(3, 1), metric=metrics.mae, metric_name="MAE", metric_goal="min", class_names=()
)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda outputs, targets: ((outputs - targets) ** 2).mean(),
            r"outputs of shape (n, 1) and targets of shape (n,) broadcast to a table",
        ),
        (lambda outputs, targets: (outputs - targets).abs().mean(), "take outputs[:, 0] in the loss"),
        (
            lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).sum(),
            "it is their sum; return the mean over the minibatch",
        ),
        (
            lambda outputs, targets: F.mse_loss(outputs[:, 0], targets) / len(targets),
            "return the mean over the minibatch",
        ),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_loss_of_a_minibatch_that_is_not_the_mean_of_its_examples_is_refused(loss, words, constant):
    def build() -> nn.Module:
        model = nn.Linear(3, 1)
        if constant:
            nn.init.zeros_(model.weight)
            nn.init.ones_(model.bias)
        return model

    assert words in _problem(replace(ERROR, build_model=build, loss=loss), NUMBERS)


@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.smooth_l1_loss, lambda outputs, targets: (outputs - targets).abs().mean()]
)
@pytest.mark.parametrize(
    "targets",
    [np.linspace(1000, 1020, 120), np.linspace(-21.5, -20.5, 120), np.repeat([0.0, 1.0], [20, 100])],
    ids=["pressure", "temperature", "equal at the beginning"],
)
def test_loss_that_broadcasts_is_refused_for_targets_far_from_the_outputs_and_for_equal_ones(loss, targets):
    """A new model gives all examples about zero, and the first eight targets may be the same."""
    data = replace(NUMBERS, train_y=targets.astype(np.float32))
    models = [nn.Linear(3, 1), nn.Linear(3, 1, bias=False)]
    nn.init.zeros_(models[1].weight)
    for model in models:
        with pytest.raises(DataError, match="broadcast to a table of each output with each target"):
            trial_loss(replace(ERROR, loss=loss), model, data, "device")
        right = replace(ERROR, loss=lambda outputs, wanted: loss(outputs[:, 0], wanted))
        assert trial_loss(right, model, data, "device") == ""


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: F.mse_loss(outputs[:, 0], targets).sqrt(),
        lambda outputs, targets: (outputs[:, 0] - targets).abs().max(),
        lambda outputs, targets: (outputs[0, 0] - targets[0]) ** 2,
    ],
    ids=["root", "greatest", "first"],
)
def test_loss_of_pairs_that_is_no_mean_is_not_said_to_broadcast(loss):
    words = _problem(replace(ERROR, loss=loss), NUMBERS)
    assert "return the mean over the minibatch" in words and "broadcast" not in words


def _correlation(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss without a value for one example."""
    return 1 - torch.corrcoef(torch.stack([outputs[:, 0], targets]))[0, 1]


def test_loss_without_a_value_for_one_example_is_refused_only_where_it_broadcasts():
    require_trainable(replace(ERROR, loss=_correlation), NUMBERS, "device")
    spread = replace(ERROR, loss=lambda outputs, targets: ((outputs - targets) ** 2).mean() + 0 * outputs.var())
    assert "broadcast to a table" in _problem(spread, NUMBERS)


def test_loss_that_is_a_mean_and_loss_with_weights_of_the_classes_pass():
    require_trainable(
        replace(ERROR, loss=lambda outputs, targets: F.l1_loss(outputs[:, 0], targets)), NUMBERS, "device"
    )
    weights = torch.tensor([1.0, 5.0])
    weighed = replace(TASK, loss=lambda outputs, targets: F.cross_entropy(outputs, targets, weights))
    require_trainable(weighed, DATA, "device")
    torch.manual_seed(0)
    assert "right for weights of the classes" in trial_loss(weighed, build_model(), DATA, "device")
    assert trial_loss(TASK, build_model(), DATA, "device") == ""


def _ranked(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """A metric without a value where there is one class."""
    rare = int(targets.sum())
    return float("nan") if rare in (0, len(targets)) else rare / len(targets)


@pytest.mark.parametrize("metric", [_ranked, lambda outputs, targets: 1 / float(targets.float().std(correction=0) > 0)])
def test_metric_without_a_value_for_one_class_is_refused_with_the_remedy(metric):
    one = replace(DATA, test_y=np.zeros_like(DATA.test_y))
    text = _problem(replace(TASK, metric=metric), one)
    assert "are of class 0: split so that each part has several classes" in text


def test_metric_is_measured_on_all_test_rows():
    """The first 600 rows are of one class."""
    rows = np.resize(np.arange(len(DATA.test_x)), 700)
    late = replace(DATA, test_x=DATA.test_x[rows], test_y=(np.arange(700) >= 600).astype(np.int64))
    require_trainable(replace(TASK, metric=_ranked), late, "device")


def test_timed_steps_leave_the_model_as_it_was_before_any_training():
    module = build_model()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert step_seconds(TASK, module, DATA) > 0.0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
