"""Real training in a simulated fleet: the update of a device at the virtual time at which it offers the update.

A device trains at the end of its virtual training time, from the model of its own round. The coordinator's own code aggregates,
carried work included (coordinator.aggregation). Updates travel exactly; their size on the lines is that of the study's terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.rebased_updates import Staleness
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy_calls import apply_strategy
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.buffered.speed_classes import SpeedClasses
from fedpatch.shared.task_checks.trial_training import require_trainable
from fedpatch.shared.tasks.task import Task, data_root, find_task
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.options import make_study, require_federated
from fedpatch.simulator.experiment.simulation import Simulation, as_torch, limits_of, one_thread
from fedpatch.simulator.fleet.random_traits import draw_traits
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import Cohort, Learner


@dataclass(frozen=True)
class LearnedRound:
    """The model after a round.

    Attributes:
        at_s: Virtual seconds from the beginning of the study.
        version: Number of rounds that made a model.
        user_accuracy: Mean over all devices, present or not, each with its own patch.
        p10: The bound of the worst tenth of the devices.
        slow_mean: Mean over the slowest fifth of the devices.
        staleness: Number of aggregated updates by staleness.
        weights: Share of the weights by fifth of the devices, the fastest fifth first.
        examples: Share of the training examples of each fifth.
    """

    at_s: float
    version: int
    user_accuracy: float
    p10: float
    slow_mean: float
    staleness: Mapping[str, int] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    examples: tuple[float, ...] = ()


class FleetLearning:
    """The training of one study; devices are numbered from 1.

    Args:
        terms: The study, with the task in `train`.
    """

    def __init__(self, terms: FleetTerms) -> None:
        assert terms.train is not None
        task = find_task(terms.train)
        study = make_study(
            task=task,
            task_ref=terms.train,
            clients=terms.devices,
            strategy=terms.strategy,
            private=terms.private,
            data=terms.train_data,
            seed=terms.seed,
            target_ua=terms.target_ua,
            learning_rate=terms.learning_rate,
            server_learning_rate=terms.server_learning_rate,
            epochs=terms.epochs,
            steps=terms.steps,
        )
        require_federated(study)
        try_out = partial(require_trainable, task, holder="device 1")
        population = load_population(task, study.data, study.clients, study.seed, data_root(), try_out)
        self._terms, self._study, self._task = terms, study, task
        self._simulation = Simulation(study, task, population, self._make_cohort)
        self._versions: dict[int, int] = {}
        self._bases: dict[int, dict[str, Array]] = {}
        self._trained: dict[tuple[int, int], tuple[dict[str, Array], UpdateReport]] = {}
        self._batches = [0] * study.clients
        self._speeds = SpeedClasses()
        self._train_s = [draw_traits(terms, number).train_s for number in range(1, terms.devices + 1)]
        for number, train_s in enumerate(self._train_s, 1):
            self._speeds.note(_name(number), train_s)
        self._folded: tuple[dict[str, int], tuple[float, ...]] = ({}, ())

    def _make_cohort(self, task: Task, context: LearnerContext) -> Cohort:
        self._learner: Learner = make_learner(task, replace(context, features=None))
        self._plan: TrainPlan = context.plan
        return InProcess(self._learner)

    @property
    def version(self) -> int:
        """Number of rounds that made a model."""
        return self._simulation.server.round

    def publish(self, round_number: int) -> None:
        """Keep the model that devices of this round begin with."""
        self._versions[round_number] = self.version
        self._bases[self.version] = self._simulation.server.tensors
        oldest = self.version - self._terms.max_staleness - 1
        self._bases = {version: base for version, base in self._bases.items() if version >= oldest}

    def train(self, number: int, round_number: int, train_s: float) -> None:
        """Compute LocalUpdate of a device, from the model of its round.

        Args:
            number: Number of the device.
            train_s: Virtual training time of the device, for the report.
        """
        base = self._bases.get(self._versions[round_number])
        if base is None:
            return
        client = number - 1
        examples = self._simulation.population.num_examples[client]
        with one_thread():
            self._learner.begin(as_torch(base))
            before = self._learner.measure(client)
            self._learner.expect([(client, self._batches[client])])
            loss = self._learner.train(client, self._batches[client], 1.0)
            trained = self._learner.tensors_of(self._learner.result())
        steps = self._plan.steps_for(examples)
        self._batches[client] += steps
        schema = self._simulation.strategy.travelling(self._simulation.public)
        update = {spec.name: trained[spec.name].numpy().astype(spec.dtype) for spec in schema.specs}
        report = UpdateReport("00" * 32, examples, steps, loss, before, None, 0.0, train_s)
        self._trained[number, round_number] = update, report

    def report(self, number: int, round_number: int) -> UpdateReport:
        """Return the report of a trained update."""
        return self._trained[number, round_number][1]

    def fold(self, round_number: int, devices: Sequence[int], carried: Mapping[int, CarriedWork]) -> None:
        """Make the next model.

        Args:
            devices: Numbers of the devices whose updates count.
            carried: The carried work of devices whose updates are from earlier rounds.
        """
        simulation, carry = self._simulation, self._terms.carry_policy()
        rounds = {number: carried[number].round if number in carried else round_number for number in devices}
        stale: dict[str, Staleness] = {}
        for number, work in carried.items():
            assert carry is not None
            age = self.version - work.version
            stale[_name(number)] = Staleness(age, carry.factor(age), self._bases[work.version])
        updates = {_name(number): self._trained.pop((number, of))[0] for number, of in rounds.items()}
        counts = {_name(number): simulation.population.num_examples[number - 1] for number in devices}
        simulation.server = self.next_state(simulation.server, counts, updates, stale)
        ages = {name: stale[name].versions if name in stale else 0 for name in counts}
        histogram = {str(age): list(ages.values()).count(age) for age in sorted(set(ages.values()))}
        weighs = example_weights(counts, limits_of(self._study).examples)
        weights = {name: weight * (stale[name].factor if name in stale else 1.0) for name, weight in weighs.items()}
        self._folded = (histogram, self._speeds.shares(weights))
        self._forget()

    def next_state(
        self,
        server: ServerState,
        counts: Mapping[str, int],
        updates: Mapping[str, dict[str, Array]],
        stale: Mapping[str, Staleness],
    ) -> ServerState:
        """Return the state after the aggregation of updates.

        Args:
            server: The state before.
            counts: Training examples by device.
            updates: Trained tensors by device.
            stale: Staleness of carried updates by device.
        """
        simulation = self._simulation
        folded = aggregate(
            RoundUpdates(counts, updates.__getitem__, stale=stale),
            RoundBase(simulation.strategy.travelling(simulation.public), server.tensors, self._plan, server.references),
            limits_of(self._study),
        )
        return apply_strategy(simulation.strategy, server, folded.mean, simulation.public)

    def _forget(self) -> None:
        """Delete updates that are too old for any later version."""
        oldest = self.version - self._terms.max_staleness - 2
        old = [key for key in self._trained if self._versions[key[1]] < oldest]
        for key in old:
            del self._trained[key]

    def measure(self, now: float) -> LearnedRound:
        """Measure the present model on all devices; `now` is the virtual time, in seconds."""
        with one_thread():
            self._learner.begin(as_torch(self._simulation.server.tensors))
            accuracies = self._simulation.user_accuracies()
        values = np.array([accuracies[client] for client in sorted(accuracies)])
        ordered = sorted(accuracies, key=lambda client: self._train_s[client])
        slowest = [accuracies[client] for client in ordered[-max(1, len(ordered) // 5) :]]
        examples = self._simulation.population.num_examples
        shares = self._speeds.shares({_name(client + 1): float(count) for client, count in enumerate(examples)})
        histogram, weights = self._folded
        return LearnedRound(
            now,
            self.version,
            float(values.mean()),
            self._simulation.metric.p10(values.tolist()),
            float(np.mean(slowest)),
            histogram,
            weights,
            shares,
        )

    def reached(self, learned: LearnedRound) -> bool:
        """Return whether the user accuracy of a model is the target or better."""
        return self._study.reached(learned.user_accuracy)

    def close(self) -> None:
        """Close the simulation that measures the models; it has no other process."""
        self._simulation.close()


def _name(number: int) -> str:
    return f"device-{number}"
