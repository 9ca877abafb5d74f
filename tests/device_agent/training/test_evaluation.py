"""User accuracy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpatch.device_agent.training.evaluation import Cancelled, user_accuracy
from fedpatch.shared.errors import DataError
from tests.device_agent.toy_tasks import TOY, build_model, random_data


@pytest.fixture
def model():
    """A toy model whose statistics are not those of its test data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = build_model()
        model.train()
        model(torch.randn(64, 12) * 3 + 1)
    return model


@pytest.fixture
def test_set():
    """40 examples: (inputs, targets)."""
    data = random_data("evaluation", 40)
    return torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)


def test_evaluation_is_the_metric_of_all_outputs(model, test_set):
    """The metric is computed once, on all outputs, and is not a mean over batches."""
    x, y = test_set
    lengths = []

    def metric(outputs, targets):
        lengths.append((len(outputs), len(targets)))
        return 0.25

    assert user_accuracy(model, replace(TOY, metric=metric), x, y, batch_size=7) == 0.25
    assert lengths == [(40, 40)]


def test_evaluation_checks_cancellation_between_batches(model, test_set):
    x, y = test_set
    model.train()
    asked = []

    def cancelled():
        asked.append(model.training)
        return len(asked) == 3

    with pytest.raises(Cancelled):
        user_accuracy(model, TOY, x, y, batch_size=7, cancelled=cancelled)
    assert asked == [False] * 3
    assert model.training


@pytest.mark.parametrize("batch_size", [1, 7, 40, 512])
def test_evaluation_is_independent_of_the_batch_size(model, test_set, batch_size):
    """Running statistics are used, so an example's output does not depend on its neighbours."""
    x, y = test_set
    model.eval()
    expected = float((model(x).argmax(dim=1) == y).float().mean())
    assert user_accuracy(model, TOY, x, y, batch_size) == pytest.approx(expected)


def test_nothing_is_learned_from_test_data(model, test_set):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model.bn.eval()
    user_accuracy(model, TOY, *test_set)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [model.training, model.fc1.training, model.bn.training] == [True, True, False]


def test_the_mode_comes_back_after_an_error_too(model, test_set):
    """A metric that raises does not leave the model in evaluation mode."""

    def metric(outputs, targets):
        raise KeyError("metric")

    model.train()
    with pytest.raises(KeyError):
        user_accuracy(model, replace(TOY, metric=metric), *test_set)
    assert model.training


class ScalesInPlace(torch.nn.Module):
    """A model that scales its inputs in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Three outputs for each example."""
        return x.mul_(0.5)[:, :3]


def test_a_model_that_changes_its_inputs_does_not_change_the_test_data(test_set):
    x, y = test_set
    before = x.clone()
    user_accuracy(ScalesInPlace(), TOY, x, y)
    assert torch.equal(x, before)


class Squeezes(torch.nn.Module):
    """A model with one output for each example, whose axis is removed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A number for each example."""
        return x[:, :1].squeeze()


@pytest.mark.parametrize("batch_size", [13, 39])
def test_a_model_that_ends_with_squeeze_is_measured_also_where_one_example_is_left_over(test_set, batch_size):
    x, y = test_set
    task = replace(TOY, metric=lambda outputs, targets: float(torch.equal(outputs, x[:, 0]) and len(targets) == 40))
    assert user_accuracy(Squeezes(), task, x, y, batch_size) == 1.0


MAE = {"metric_name": "MAE", "metric_goal": "min"}


@pytest.mark.parametrize(
    ("value", "terms", "words"),
    [
        *((value, {}, "a fraction from 0 to 1") for value in (float("nan"), float("inf"), 97.0, -0.5)),
        *((value, MAE, r"a number from -1e\+12 to 1e\+12") for value in (float("nan"), 1e13)),
    ],
    ids=str,
)
def test_a_metric_beyond_its_range_is_refused(model, test_set, value, terms, words):
    task = replace(TOY, metric=lambda outputs, targets: value, **terms)
    with pytest.raises(DataError, match=rf"'toy'.*on 40 test examples; `metric` must return {words}"):
        user_accuracy(model, task, *test_set)


@pytest.mark.parametrize(("value", "terms"), [(0.0, {}), (1.0, {}), (-3.0, MAE), (250.0, MAE)], ids=str)
def test_a_metric_within_its_range_is_returned(model, test_set, value, terms):
    assert user_accuracy(model, replace(TOY, metric=lambda outputs, targets: value, **terms), *test_set) == value
