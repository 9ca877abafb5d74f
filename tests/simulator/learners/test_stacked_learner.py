"""Training many clients in stacked tensors gives the results of training one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.shared.errors import DataError, UpdateRefused, UsageError
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.simulation import Simulation
from fedpatch.simulator.learners.cohort_training import InProcess
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import Cohort
from fedpatch.simulator.learners.reference_learner import OneByOneLearner
from fedpatch.simulator.learners.stacked_learner import StackedCohort, StackedModel
from fedpatch.simulator.spec.study import Study
from tests.simulator.studies import STRATEGIES, one_process

FEATURES, CLASSES = 6, 3
EXAMPLES = (23, 9, 40, 4, 23, 16, 31)  # of each client: different numbers of steps, one with less than a batch


class Residual(nn.Module):
    """A residual connection, a tied layer, an average that is reassigned, and a layer that no output depends on."""

    running: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(FEATURES, 5)
        self.bn1 = nn.BatchNorm1d(5)
        self.block = nn.Linear(5, 5)
        self.again = self.block
        self.unused = nn.Linear(2, 2)
        self.out = nn.Linear(5, CLASSES)
        self.register_buffer("running", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(torch.tanh(self.into(x)))
        x = x + torch.tanh(self.again(torch.tanh(self.block(x))))
        if self.training:
            self.running = 0.9 * self.running + 0.1 * x.detach().mean(0)
        logits: Tensor = self.out(x - self.running)
        return logits


def _sequential() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES)
    )


# The gradient of a bias before a batch norm is only rounding error, which Adam scales up: hence bias=False.


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, bias=False),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


class Viewing(nn.Module):
    """A model that takes a view of its convolution's outputs, which therefore must be contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv2d(1, 4, 2)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.into(x.view(-1, 1, 2, 3)))
        logits: Tensor = self.out(x.view(x.size(0), -1))
        return logits


def _unstackable() -> nn.Module:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) > -1e9 else x

    return Branching(FEATURES, CLASSES)


def _noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def _batch_normed_by_examples() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8, bias=False), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, CLASSES)
    )


def _load(spec: str, _: Path) -> DeviceData:
    client = int(spec)
    rng = np.random.default_rng(client)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(count, FEATURES)).astype(np.float32)
        x[:, FEATURES - 2 * (client % 2) :] = 0  # features that some clients do not use
        return x, (x[:, : 1 + client % 2].sum(1) > 0).astype(np.int64) + client % 2

    return DeviceData(*part(EXAMPLES[client]), *part(3 + 2 * (client % 3)))


def _task(build_model: Callable[[], nn.Module]) -> Task:
    return Task("toy", "a toy", build_model, _load, cross_entropy, accuracy)


def _study(strategy: str, private: str = "none", **terms) -> Study:
    rate = 0.02 if strategy == "fedavg-adam" else 0.2
    study = Study("toy", len(EXAMPLES), strategy, private, "{index}", 1.0, 2, None, 5, rate, 8)
    return replace(study, **terms)


class Played(Simulation):
    """A simulation of a study, run to its last round."""

    def __init__(self, study: Study, task: Task, make_cohort: Callable[[Task, LearnerContext], Cohort]) -> None:
        population = load_population(task, study.data, study.clients, study.seed, Path())
        super().__init__(study, task, population, make_cohort)
        while not self.over:
            self.step()
        self.close()

    def require_like(self, other: Played) -> None:
        """Models, moments, patches, accuracies and losses are the same except for rounding."""
        assert self.server.tensors.keys() == other.server.tensors.keys()
        for name, value in self.server.tensors.items():
            np.testing.assert_allclose(value, other.server.tensors[name], rtol=1e-5, atol=1e-5, err_msg=name)
        for name, block in self.patches.values.items():
            np.testing.assert_allclose(block, other.patches.values[name], rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(self.numbers, other.numbers, rtol=1e-5, atol=1e-5)

    @property
    def numbers(self) -> list[float]:
        return [value for one in self.points for value in (one.user_accuracy, one.lowest, one.train_loss or 0.0)]


def _stacked(group: int | None, device: str = "cpu") -> Callable[[Task, LearnerContext], Cohort]:
    return lambda task, context: StackedCohort(task, context, device, group=group)


def same_as_one_at_a_time(study: Study, task: Task, group: int = 3) -> Played:
    """Run the study stacked; the result must equal that of the fused layers."""
    stacked = Played(study, task, _stacked(group))
    stacked.require_like(Played(study, task, one_process))
    return stacked


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("private", ["none", "stats", "affine", "all", "names:3.*,0.bias"])
def test_plain_sequence_is_trained_as_one_client_at_a_time(strategy, private):
    same_as_one_at_a_time(_study(strategy, private), _task(_sequential))


@pytest.mark.parametrize("build_model", [_convolutional, _batch_normed_by_examples])
def test_convolutions_and_batch_norms_without_memory_are_trained_the_same(build_model):
    same_as_one_at_a_time(_study("fedavg-adam", "none"), _task(build_model), len(EXAMPLES))


def test_a_view_of_the_outputs_of_a_convolution_is_trained_the_same():
    study, task = _study("fedavg", "none"), _task(Viewing)
    one_by_one = Played(study, task, lambda task, context: InProcess(OneByOneLearner(task, context)))
    Played(study, task, _stacked(4)).require_like(one_by_one)


def test_convolutions_of_stacks_are_products(monkeypatch):
    convolved: list[torch.Size] = []
    monkeypatch.setattr(nn.Conv2d, "forward", lambda module, x: convolved.append(x.shape))
    Played(_study("fedavg", "none"), _task(_convolutional), _stacked(3))
    assert not convolved


def test_independent_clients_are_trained_with_nothing_sent():
    assert not same_as_one_at_a_time(_study("independent"), _task(Residual)).server.tensors


@pytest.mark.parametrize("terms", [{"steps": 3}, {"epochs": 2}])
def test_rounds_of_given_steps_or_epochs_are_trained_the_same(terms):
    same_as_one_at_a_time(_study("fedavg", "stats", **terms), _task(_sequential))


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("private", ["none", "stats", "affine", "all", "names:out.*,running"])
def test_any_model_is_trained_as_on_a_device(strategy, private):
    study, task = _study(strategy, private), _task(Residual)
    one_by_one = Played(study, task, lambda task, context: InProcess(OneByOneLearner(task, context)))
    Played(study, task, _stacked(4)).require_like(one_by_one)


@pytest.mark.parametrize("group", [None, 1, 2, len(EXAMPLES), 100])
def test_size_of_groups_changes_nothing(group):
    study, task = _study("fedavg-adam", "all"), _task(_sequential)
    Played(study, task, _stacked(group)).require_like(Played(study, task, _stacked(3)))


def test_the_same_groups_give_the_same_bits():
    study, task = _study("fedavg-adam", "stats"), _task(_sequential)
    one, other = (Played(study, task, _stacked(3)) for _ in range(2))
    assert all(np.array_equal(value, other.server.tensors[name]) for name, value in one.server.tensors.items())
    assert one.numbers == other.numbers


@pytest.mark.parametrize(("free", "smallest", "largest"), [(1, 1, 1), (100_000, 2, 20), (10**9, 1000, 10**6)])
def test_a_gpu_takes_as_many_at_once_as_fit(monkeypatch, free, smallest, largest):
    monkeypatch.setattr("fedpatch.simulator.learners.stacked_learner._free_bytes", lambda device: free)
    made: list[StackedCohort] = []

    def make(task: Task, context: LearnerContext) -> Cohort:
        made.append(StackedCohort(task, context, "cpu"))
        return made[0]

    study, task = _study("fedavg-adam", "all"), _task(_sequential)
    Played(study, task, make).require_like(Played(study, task, _stacked(3)))
    assert smallest <= made[0].group <= largest


def test_the_memory_of_a_client_covers_what_its_training_holds():
    task, device = _task(_sequential), torch.device("cpu")
    values = sum(value.nbytes for value in _sequential().parameters())

    def nbytes(strategy: str, examples: int) -> int:
        plan = find_strategy(strategy).plan(0.1, examples, 1, 0, 0)
        x, y = torch.zeros((examples, FEATURES)), torch.zeros(examples, dtype=torch.int64)
        return StackedModel(task, plan, device).nbytes_per_client(x, y)

    assert nbytes("fedavg", 4) > 2 * values
    assert nbytes("fedavg-adam", 4) > 4 * values
    assert nbytes("fedavg", 8) - nbytes("fedavg", 4) > 4 * 4 * (FEATURES + 2 * 8 + CLASSES)


def test_the_memory_of_a_client_covers_the_windows_of_a_convolution():
    task = _task(lambda: nn.Sequential(nn.Conv2d(1, 2, 5), nn.Flatten(), nn.Linear(2 * 16 * 16, CLASSES)))
    x, y = torch.zeros((3, 1, 20, 20)), torch.zeros(3, dtype=torch.int64)
    model = StackedModel(task, find_strategy("fedavg").plan(0.1, 3, 1, 0, 0), torch.device("cpu"))
    assert model.nbytes_per_client(x, y) > 4 * 3 * 16 * 16 * 25


UNMAPPED = r"task 'toy': its model cannot be computed for many clients at once .*--device cpu"


@pytest.mark.parametrize(
    ("study", "build_model", "refusal", "problem"),
    [
        (_study("per-fedavg"), _sequential, UsageError, "per-fedavg .*--device cpu"),
        (_study("pfedme"), _sequential, UsageError, "pfedme .*--device cpu"),
        (_study("fedavg"), _unstackable, UsageError, UNMAPPED),
        (_study("fedavg"), _noisy, UsageError, UNMAPPED),
        (_study("fedavg", batch_size=1), _sequential, DataError, "batch norm cannot learn from a batch of one example"),
    ],
)
def test_unstackable_study_is_refused(study, build_model, refusal, problem):
    with pytest.raises(refusal, match=problem):
        Played(study, _task(build_model), _stacked(3))


def test_unknown_device_is_refused():
    with pytest.raises(UsageError, match=r"device 'toaster' cannot be used here .*--device cpu"):
        Played(_study("fedavg"), _task(_sequential), lambda task, context: StackedCohort(task, context, "toaster"))


@pytest.mark.parametrize("steps", [0, 1])
def test_client_that_diverges_ends_the_round(steps):
    """The error names the client, for a loss that is not finite and for a value that only the next loss would show."""
    task = replace(_task(Residual), loss=lambda outputs, targets: 1e10 * cross_entropy(outputs, targets))
    with pytest.raises(UpdateRefused, match=r"training client \d diverged.*smaller learning rate"):
        Played(_study("fedavg", learning_rate=1e30, steps=steps), task, _stacked(3))


class Masked(nn.Module):
    """A model with the mask of causal attention."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.triu(torch.full((FEATURES, FEATURES), -torch.inf), diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.softmax(x[:, :, None] * x[:, None, :] + self.mask, dim=-1) @ x[:, :, None]
        outputs: Tensor = self.out(mixed[:, :, 0])
        return outputs


@pytest.mark.parametrize("encoding", ["fp32+zstd", "delta-int8"])
def test_a_mask_of_minus_infinity_is_trained_around(encoding):
    study, task = _study("fedavg-adam", encoding=encoding), _task(Masked)
    one_by_one = Played(study, task, lambda task, context: InProcess(OneByOneLearner(task, context)))
    for played in (one_by_one, Played(study, task, _stacked(3))):
        np.testing.assert_array_equal(played.server.tensors["mask"], Masked().mask.numpy())
        assert np.isfinite(played.server.tensors["out.weight"]).all()


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here that torch can use")


@on_gpu
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("private", ["none", "stats", "affine", "all"])
@pytest.mark.parametrize("build_model", [_sequential, _convolutional, Residual])
def test_a_gpu_gives_the_results_of_a_cpu(strategy, private, build_model):
    study, task = _study(strategy, private), _task(build_model)
    Played(study, task, _stacked(3, "cuda")).require_like(Played(study, task, _stacked(3)))


@on_gpu
@pytest.mark.parametrize("build_model", [_sequential, _convolutional, Residual])
def test_a_gpu_gives_the_same_bits_again(build_model):
    study, task = _study("fedavg-adam", "stats"), _task(build_model)
    one, other = (Played(study, task, _stacked(None, "cuda")) for _ in range(2))
    assert all(np.array_equal(value, other.server.tensors[name]) for name, value in one.server.tensors.items())
    assert one.numbers == other.numbers
