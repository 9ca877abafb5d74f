"""Small studies, and the deployed system's own LocalUpdate as their reference; tests of the simulator's engine share them.

The tasks are in float64, so that two computations of a value differ by less than 1e-9, although batch norm magnifies errors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.control_variates import add_controls
from fedpatch.coordinator.aggregation.limit_syntax import parse_examples_cap
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.local_trainer import LocalResult, LocalTrainer
from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import Array, Tensors
from fedpatch.shared.tensors.patches import merge, parse_policy, split
from fedpatch.shared.wire.plan_terms import make_terms
from fedpatch.simulator.clients.population import Population, load_population
from fedpatch.simulator.experiment.client_selection import select
from fedpatch.simulator.experiment.simulation import Simulation, limits_of, simulate
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import Learner
from fedpatch.simulator.learners.reference_learner import COPY, OWN, TAKEN, control_in, copy_in
from fedpatch.simulator.spec.study import Outcome, Point, Study, client_id
from tests.support import oracle

FEATURES, CLASSES = 12, 3
SIZES = (23, 40, 11, 8, 15, 6, 31)
"""Training examples of client 0, 1, ...: all different, one below the size of a batch, and most no multiple of it."""
BATCH = 7
STRATEGIES = ("fedavg", "fedadam", "fedavg-adam")
POLICIES = ("none", "stats", "affine", "all", "names:fc1.weight,bn.running_mean,fc2.bias")
STEP_TOLERANCE = 1e-6
"""Step counts are averaged in float64 but kept in float32, whose last digit depends on the order of adding."""
RATES = {"fedavg": 0.2, "scaffold": 0.2, "fedadam": 0.2, "fedavg-adam": 0.01, "independent": 0.2}

torch.set_num_threads(1)


def build_model() -> nn.Module:
    """FC -> tanh -> BN -> FC, in float64: a ReLU before batch norm would magnify rounding errors."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(FEATURES, 8), tanh=nn.Tanh(), bn=nn.BatchNorm1d(8), fc2=nn.Linear(8, CLASSES)
        )
    ).double()


def build_cnn() -> nn.Module:
    """Two convolutions, batch norm of both kinds, pooling and two linear layers, nested; in float64.

    No bias comes right before a batch norm: its gradient would be nothing but rounding errors, which Adam magnifies.
    """
    features = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(4, 5, 2),
        nn.ReLU(),
    )
    head = nn.Sequential(nn.Flatten(), nn.Linear(10, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    return nn.Sequential(OrderedDict[str, nn.Module](features=features, head=head)).double()


def client_data(index: int, seed: int = 0) -> DeviceData:
    """Every client has its own rule for the labels, and its own third of the features that is always zero."""
    rng = np.random.default_rng([seed, index])
    count = SIZES[index % len(SIZES)]
    x = rng.normal(size=(count + 20, FEATURES)) + rng.normal(size=FEATURES)
    y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    x[:, rng.permutation(FEATURES)[: FEATURES // 3]] = 0
    return DeviceData(x[:count], y[:count], x[count:], y[count:])


def load_data(spec: str, _root: Path) -> DeviceData:
    """`<seed>/<number of the client>`, and after `;` the fault of one client: noisy-2, lonely-2, hollow-2, absent-2."""
    head, _, special = spec.partition(";")
    seed, index = map(int, head.split("/"))
    data, (what, _, which) = client_data(index, seed), special.partition("-")
    if what == "absent" and index == int(which):
        raise DataError(f"uneven: examples of client {index} are absent; fetch them first")
    if what == "lonely" and index == int(which):
        return DeviceData(data.train_x[:1], data.train_y[:1], data.test_x, data.test_y)
    if what == "noisy" and index == int(which):
        return replace(data, counts_in_ua=False)
    if what == "hollow" and index == int(which):
        return replace(data, train_x=data.train_x * np.nan)
    return data


def load_images(spec: str, root: Path) -> DeviceData:
    """The same data as images of 3 x 4 pixels."""
    data = load_data(spec, root)
    return replace(data, train_x=data.train_x.reshape(-1, 1, 3, 4), test_x=data.test_x.reshape(-1, 1, 3, 4))


UNEVEN = Task(
    "uneven", "random numbers", build_model, load_data, cross_entropy, accuracy, batch_size=BATCH, validation_share=0.0
)
OWN_LOSS = replace(UNEVEN, loss=F.cross_entropy)
"""The same loss under a name that the simulator does not know."""
IMAGES = replace(UNEVEN, build_model=build_cnn, load_data=load_images)
REFERENCE = "tests.simulator.studies:UNEVEN"


def study_of(strategy: str = "fedavg", private: str = "none", **changes: object) -> Study:
    """Seven clients of UNEVEN, half of whom take part in each round."""
    study = Study(
        task=REFERENCE,
        clients=len(SIZES),
        strategy=strategy,
        private=private,
        data="{seed}/{index}",
        participation=0.5,
        rounds=5,
        target_ua=None,
        seed=3,
        learning_rate=RATES[strategy],
        batch_size=BATCH,
        server_learning_rate={"fedadam": 0.02, "scaffold": 1.0}.get(strategy),
    )
    return replace(study, **changes)  # type: ignore[arg-type]


def population_of(study: Study, task: Task) -> Population:
    """The data of the study's clients."""
    return load_population(task, study.data, study.clients, study.seed, Path("/nowhere"))


def simulation_of(
    study: Study, task: Task = UNEVEN, learner: Callable[[Task, LearnerContext], Learner] = make_learner
) -> Simulation:
    """A simulation in this process, before its first round."""
    return Simulation(study, task, population_of(study, task), lambda task, context: InProcess(learner(task, context)))


def one_process(task: Task, context: LearnerContext) -> InProcess:
    """Train as the simulator does with one worker."""
    return InProcess(make_learner(task, context))


def play_on(study: Study, folder: Path, points: int, **options: Any) -> Outcome:
    """Simulate until `points` points are known, earlier points included."""
    known: list[Point] = []
    return simulate(study, on_point=known.append, stopped=lambda: len(known) >= points, saved=folder, **options)


def without_seconds(outcome: Outcome) -> tuple[Study, list[Point], bool]:
    """Everything of an outcome that does not depend on the machine's speed."""
    return outcome.study, [replace(one, seconds=0.0) for one in outcome.points], outcome.complete


class Deployed:
    """The same study as a coordinator and its devices compute it, with function calls instead of a network."""

    def __init__(self, study: Study, task: Task = UNEVEN) -> None:
        self.study = study
        self.strategy = find_strategy(study.strategy, study.server_learning_rate)
        plan = self.strategy.plan(study.learning_rate, study.batch_size, study.epochs, study.steps, study.seed)
        self.plan = replace(plan, **make_terms(study.prox, study.phases, study.personal, study.finish))
        self.schema = schema_of(new_model(task)).with_moments(self.strategy.moments)
        self.policy = parse_policy(study.private)
        self.public = self.policy.public(schema_of(new_model(task)))
        initial = initial_tensors(task, study.seed)
        self.state = self.strategy.init({name: initial[name] for name in self.public.names}, self.public)
        patch = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.policy.patch(self.schema).specs}
        patch |= {name: initial[name] for name in patch if name in initial}
        specs = [study.data.format(index=index, count=study.clients, seed=study.seed) for index in range(study.clients)]
        self._trainers = [LocalTrainer(task, task.load_data(spec, Path("/nowhere"))) for spec in specs]
        self.patches: list[dict[str, Array]] = [dict(patch) for _ in specs]
        self.copies: list[dict[str, Array]] = [{} for _ in specs]
        self.controls: list[dict[str, Array]] = [{} for _ in specs]
        self._batches = [0] * study.clients
        self.accuracies_after: dict[int, float] = {}
        self.clipped = 0

    def selected(self) -> list[int]:
        """The clients of the next round, as the coordinator selects them."""
        ids = {client_id(client): client for client in range(self.study.clients)}
        chosen = select(list(ids), self.study.participation, 1.0, 1, self.study.seed, self.state.round + 1)
        return [ids[one] for one in chosen.invited]

    def finished(self, client: int) -> LocalResult:
        """The client's result from the present model in an evaluate round, by a plan with `finish`."""
        own = self._trainers[client].finish(
            merge(self.state.tensors, self.patches[client]),
            self.plan,
            stream_seed=stream_seed(self.study.seed, client_id(client)),
            cancelled=lambda: False,
            private=self.policy.private_names(self.schema),
        )
        assert own is not None
        return own

    def play(
        self, change: Callable[[int, dict[str, Array]], dict[str, Array]] = lambda client, update: update
    ) -> tuple[float, float]:
        """Run one round; return mean user accuracy before it and mean loss. `change` returns the update that a client sends."""
        before = list(self.controls)
        updates, counted, accuracies, losses = {}, {}, [], []
        for client in self.selected():
            trained = self._trainers[client].train(
                merge(self.state.tensors, self.patches[client]),
                self.plan,
                copy=self.copies[client],
                first_batch=self._batches[client],
                stream_seed=stream_seed(self.study.seed, client_id(client)),
                on_step=lambda done, total: None,
                cancelled=lambda: False,
                private=self.policy.private_names(self.schema),
                control=self.controls[client],
            )
            assert trained is not None
            result, shown = trained
            self.controls[client] = result.control
            self.copies[client] = shown.tensors if self.plan.personal else {}
            update, self.patches[client] = split(result.tensors, self.policy, self.schema)
            self._batches[client] += result.steps
            updates[client_id(client)], counted[client_id(client)] = change(client, update), result.num_examples
            accuracies.append(shown.user_accuracy_before)
            self.accuracies_after[client] = shown.user_accuracy_after or 0.0
            losses.append(result.train_loss)
        folded = aggregate(
            RoundUpdates(counted, updates.__getitem__, alike=self.strategy.has_controls),
            RoundBase(self.strategy.travelling(self.public), self.state.tensors, self.plan, self.state.references),
            limits_of(self.study),
        )
        self.clipped += len(folded.clipped)
        for client in range(self.study.clients):
            if client_id(client) in folded.clipped:
                self.controls[client] = before[client]
        average = folded.mean
        if self.strategy.has_controls:
            number, population = self.state.round + 1, self.study.clients
            added = add_controls(
                self.state,
                average,
                list(counted),
                round_number=number,
                population=population,
                clipped=folded.clipped,
            )
            average, self.state = added.mean, added.kept_in(self.state)
        self.state = self.strategy.finish(self.state, average, self.public)
        self.state = replace(self.state, references=folded.references)
        return float(np.mean([one for one in accuracies if one is not None])), float(np.mean(losses))


def assert_close(found: Tensors, expected: Tensors, tolerance: float = 1e-9) -> None:
    """The same names, and values that differ by no more than `tolerance` in proportion, plus a hundredth of `tolerance`."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        close = max(tolerance, STEP_TOLERANCE) if name.endswith(":step") else tolerance
        np.testing.assert_allclose(found[name], value, rtol=close, atol=close * 1e-2, err_msg=name)


def algorithm_1(study: Study, rounds: list[list[str]]) -> list[oracle.Round]:
    """The results of the paper's algorithm in these rounds."""
    data = {client_id(index): client_data(index, study.seed) for index in range(study.clients)}
    return oracle.run_mtfl(
        build_model,
        {name: oracle.arrays_of(one) for name, one in data.items()},
        rounds,
        study.strategy,
        study.private,
        study.learning_rate,
        study.server_learning_rate or 0.0,
        BATCH,
        seed=study.seed,
        cap=parse_examples_cap(study.max_num_examples).factor,
    )


def patch_of(simulation: Simulation, client: int) -> Mapping[str, Array]:
    return simulation.patches.of(client)


def assert_like_deployed(study: Study, task: Task = UNEVEN, *, rounds: int = 3, tolerance: float = 1e-9) -> Simulation:
    """Every round of a simulation is that of the deployed system: model, moments, patches, accuracy and loss."""
    simulation, deployed = simulation_of(study, task), Deployed(study, task)
    point = simulation.step()
    for _ in range(rounds):
        before, loss = deployed.play()
        assert abs(point.user_accuracy - before) < 1e-12
        point = simulation.step()
        assert point.train_loss is not None
        # A simulated loss is summed up in the precision of a progress display.
        np.testing.assert_allclose(point.train_loss, loss, rtol=1e-5)
        assert simulation.server.round == deployed.state.round
        assert_close(simulation.server.tensors, deployed.state.tensors, tolerance)
        assert_close(simulation.server.server, deployed.state.server, tolerance)
    for client, patch in enumerate(deployed.patches):
        kept = patch_of(simulation, client)
        assert_close({name: kept[name] for name in kept if not name.startswith((COPY, OWN, TAKEN))}, patch, tolerance)
        if deployed.controls[client]:
            assert_close(control_in(kept), deployed.controls[client], tolerance)
        assert_close(copy_in(kept), deployed.copies[client], tolerance)
    return simulation
