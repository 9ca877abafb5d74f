"""LocalUpdate: the effect of training on a model, its moments and its statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.errors import DataError, SchemaMismatch, UpdateRefused, UsageError
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import MOMENTS
from tests.device_agent.device_rounds import ADAM, SGD
from tests.device_agent.toy_tasks import TIED, TOY, accuracy, random_data


def never() -> bool:
    return False


def run(trainer, tensors, plan, first_batch=0, on_step=lambda done, total: None, cancelled=never):
    return trainer.run(tensors, plan, first_batch=first_batch, stream_seed=42, on_step=on_step, cancelled=cancelled)


@pytest.fixture(scope="module")
def trainer():
    return LocalTrainer(TOY, random_data("training", 23))


@pytest.fixture
def start():
    return initial_tensors(TOY, 1)


def _mean_squares(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def test_sgd_is_the_formula():
    """One weight, two examples, worked out by hand: w=1, x=(1, 2), y=(3, 3), gradient -2*2 and -2*1*2, mean -4."""
    data = np.array([[1.0], [2.0]], np.float32), np.array([[3.0], [3.0]], np.float32)
    task = Task("line", "", lambda: nn.Linear(1, 1, bias=False), None, _mean_squares, lambda o, t: 0.0)  # type: ignore[arg-type]
    result = run(
        LocalTrainer(task, DeviceData(*data, *data)),
        {"weight": np.ones((1, 1), np.float32)},
        replace(SGD, batch_size=2),
    )
    assert result.tensors["weight"] == pytest.approx(1 + 0.1 * 4)
    assert result.train_loss == pytest.approx((2**2 + 1**2) / 2)


def test_the_first_step_of_adam_moves_by_the_learning_rate(trainer, start):
    """With moments from zero, bias correction makes the first step learning rate * sign(gradient)."""
    result = run(trainer, start, replace(ADAM, steps=1))
    moved = np.abs(result.tensors["fc2.weight"] - start["fc2.weight"])
    np.testing.assert_allclose(moved, 0.01, rtol=1e-3)
    gradient = result.tensors["fc2.weight:exp_avg"] / (1 - 0.9)
    np.testing.assert_allclose(result.tensors["fc2.weight:exp_avg_sq"], (1 - 0.999) * gradient**2, rtol=1e-3)
    assert result.tensors["fc2.weight:step"] == 1


def test_moments_carry_on(trainer, start):
    """Two rounds of three steps equal one of six, if model, moments and the place in the data are passed on."""
    half = replace(ADAM, steps=3)
    twice = run(trainer, run(trainer, start, half).tensors, half, first_batch=3)
    once = run(trainer, start, replace(ADAM, steps=6))
    assert twice.tensors.keys() == once.tensors.keys()
    for name, value in once.tensors.items():
        np.testing.assert_array_equal(twice.tensors[name], value, err_msg=name)


@pytest.mark.parametrize("lost", ["moments", "place"])
def test_moments_and_place_matter(trainer, start, lost):
    half = replace(ADAM, steps=3)
    between = run(trainer, start, half).tensors
    if lost == "moments":
        between = {name: value for name, value in between.items() if ":" not in name}
    twice = run(trainer, between, half, first_batch=0 if lost == "place" else 3)
    once = run(trainer, start, replace(ADAM, steps=6))
    assert not np.array_equal(twice.tensors["fc1.weight"], once.tensors["fc1.weight"])


@pytest.mark.parametrize("moments", [(), ("exp_avg",), MOMENTS])
def test_training_returns_only_the_moments_of_the_plan(trainer, start, moments):
    result = run(trainer, start, replace(ADAM, moments=moments))
    trainer.schema.with_moments(moments).check(result.tensors)


def test_statistics_are_part_of_the_result(trainer, start):
    result = run(trainer, start, SGD)
    assert result.steps == 5
    assert result.tensors["bn.num_batches_tracked"] == 5
    assert not np.array_equal(result.tensors["bn.running_mean"], start["bn.running_mean"])


def test_the_same_round_gives_the_same_result(trainer, start):
    first = run(trainer, start, ADAM)
    torch.rand(3)
    again = run(trainer, start, ADAM)
    for name, value in first.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], value, err_msg=name)
    assert (first.train_loss, first.user_accuracy_after) == (again.train_loss, again.user_accuracy_after)


def test_dropout_repeats_and_leaves_the_generator_alone():
    task = replace(TOY, build_model=lambda: nn.Sequential(nn.Linear(12, 6), nn.Dropout(0.5), nn.Linear(6, 3)))
    trainer = LocalTrainer(task, random_data("dropout", 23))
    start, state = initial_tensors(task, 0), torch.get_rng_state()
    one = run(trainer, start, SGD)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    two = run(trainer, start, SGD)
    np.testing.assert_array_equal(one.tensors["0.weight"], two.tensors["0.weight"])


def test_training_changes_neither_inputs_nor_earlier_outputs(trainer, start):
    given = {name: value.copy() for name, value in start.items()}
    first = run(trainer, start, ADAM)
    kept = {name: value.copy() for name, value in first.tensors.items()}
    run(trainer, first.tensors, ADAM)
    for name, value in start.items():
        np.testing.assert_array_equal(value, given[name])
    for name, value in first.tensors.items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)


def test_user_accuracy_is_taken_before_and_after(trainer, start):
    """`before` is measured with the received model; `after` equals `before` of a next round that begins with the result."""
    plan = replace(SGD, steps=40)
    first = run(trainer, start, plan)
    second = run(trainer, first.tensors, plan)
    assert second.user_accuracy_before == first.user_accuracy_after
    assert first.user_accuracy_before is not None and first.user_accuracy_after is not None
    assert first.user_accuracy_after > first.user_accuracy_before


def test_a_device_that_does_not_count_has_no_user_accuracy(start):
    result = run(LocalTrainer(TOY, random_data("noisy", 23, counts_in_ua=False)), start, SGD)
    assert (result.user_accuracy_before, result.user_accuracy_after) == (None, None)
    assert (result.steps, result.num_examples) == (5, 23)


def test_progress_is_reported_after_each_step(trainer, start):
    reported: list[tuple[int, int]] = []
    run(trainer, start, SGD, on_step=lambda done, total: reported.append((done, total)))
    assert reported == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("after", [0, 2])
def test_a_cancelled_round_ends_between_steps(trainer, start, after):
    reported: list[int] = []
    result = run(
        trainer, start, SGD, on_step=lambda done, total: reported.append(done), cancelled=lambda: len(reported) >= after
    )
    assert result is None
    assert reported == list(range(1, after + 1))


@pytest.mark.parametrize("asking", [1, 7])
def test_a_cancelled_round_does_not_measure_its_model(trainer, start, asking):
    """A cancel before the first of its five steps or after the last skips the measurement, slow with many test data."""
    left = iter(range(asking - 1))
    assert run(trainer, start, SGD, cancelled=lambda: next(left, None) is None) is None
    assert next(left, None) is None
    assert run(trainer, start, SGD) is not None


def test_a_frozen_parameter_is_left_alone():
    def build_model():
        model = TOY.build_model()
        next(model.parameters()).requires_grad_(False)
        return model

    task = replace(TOY, build_model=build_model)
    start = initial_tensors(task, 0)
    result = run(LocalTrainer(task, random_data("frozen", 23)), start, ADAM)
    np.testing.assert_array_equal(result.tensors["fc1.weight"], start["fc1.weight"])
    assert "fc1.weight:step" not in result.tensors


def test_a_parameter_with_two_names_has_one_value_and_one_moment():
    tensors = run(LocalTrainer(TIED, random_data("tied", 23)), initial_tensors(TIED, 0), ADAM).tensors
    for suffix in ("", ":exp_avg", ":exp_avg_sq", ":step"):
        np.testing.assert_array_equal(tensors[f"0.weight{suffix}"], tensors[f"1.weight{suffix}"])


def test_diverging_loss_raises_with_step_and_remedy(trainer, start):
    """Values too large to multiply make the loss nan; the error has the step and a remedy."""
    huge = start | {"fc2.weight": np.full_like(start["fc2.weight"], 3e38)}
    with pytest.raises(UpdateRefused, match=r"'toy'.* loss was \S+ at step 1 of 5.* smaller than 0\.1") as caught:
        run(trainer, huge, SGD)
    assert caught.value.reason == "not_finite"


def test_a_last_step_that_diverges_is_refused_with_the_tensor():
    """A finite loss can still lead to values that are not finite: its gradient overflows float32."""
    task = replace(TOY, loss=lambda outputs, targets: F.cross_entropy(outputs, targets) * 1e38)
    with pytest.raises(UpdateRefused, match=r"\w+\.\w+: \d+ of \d+ values are not finite.*learning rate") as caught:
        run(
            LocalTrainer(task, random_data("steep", 23)),
            initial_tensors(task, 0),
            replace(SGD, steps=1, learning_rate=1e3),
        )
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize(("examples", "batch_size"), [(1, 5), (23, 1)])
def test_batch_norm_needs_two_examples(start, examples, batch_size):
    """A batch of one has no variance; the error explains that."""
    trainer = LocalTrainer(TOY, random_data("lonely", examples))
    with pytest.raises(DataError, match=rf"'toy': batch norm .* batch of one example .*has {examples}\).* at least 2"):
        run(trainer, start, replace(SGD, batch_size=batch_size))


def test_a_single_example_is_enough_without_batch_norm():
    task = replace(TOY, build_model=lambda: nn.Linear(12, 3))
    assert run(LocalTrainer(task, random_data("lonely", 1)), initial_tensors(task, 0), SGD).steps == 1


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(SGD, client_optimizer="adma"), "did you mean 'adam'"),
        (replace(SGD, moments=("exp_avg",)), "sgd has no moments"),
        (replace(SGD, epochs=0), "nothing to train"),
        (replace(ADAM, moments=("exp_avrg",)), "did you mean 'exp_avg'"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(trainer, start, plan, words):
    with pytest.raises(UsageError, match=words):
        run(trainer, start, plan)


def test_tensors_of_another_model_are_refused(trainer, start):
    del start["bn.running_var"]
    with pytest.raises(SchemaMismatch, match=r"missing.*'bn\.running_var'"):
        run(trainer, start, SGD)


def test_learning_happens(trainer, start):
    result = run(trainer, start, replace(ADAM, steps=200))
    model = trainer.model.eval()
    data = random_data("training", 23)
    with torch.no_grad():
        assert accuracy(model(torch.from_numpy(data.train_x)), torch.from_numpy(data.train_y)) > 0.9
    assert result.train_loss < 0.7
