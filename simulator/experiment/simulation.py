"""One simulation from its first round to its last: Algorithm 1 of the paper without the network.

Strategies, patch policies, selection of clients and batches are those of the deployed system; only the computation of
LocalUpdate differs.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.control_variates import add_controls
from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.limit_syntax import (
    Limits,
    parse_aggregate_rule,
    parse_examples_cap,
    parse_norm_bound,
)
from fedpatch.coordinator.aggregation.privacy_policy import CENTRAL, check_public
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.coordinator.aggregation.strategy_calls import apply_strategy, begin_strategy
from fedpatch.coordinator.aggregation.weighted_mean import stored
from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.device_agent.training.batches import update_seed
from fedpatch.shared import __version__
from fedpatch.shared.errors import DataError, SchemaMismatch, UpdateRefused, UsageError
from fedpatch.shared.scripting.turns import TORCH_TURN
from fedpatch.shared.task_checks.trial_training import require_trainable
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tasks.task import Task, data_root, find_task, use_data_root
from fedpatch.shared.tasks.torch_model import initial_tensors, require_whole_ties, schema_of
from fedpatch.shared.tensors.arrays import Array, Schema, require_finite
from fedpatch.shared.tensors.common_update_checks import untrained
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.plan_terms import make_terms, require_fitting
from fedpatch.simulator.attacks.backdoor import clients_with_tests
from fedpatch.simulator.attacks.bad_clients import BadClients, bad_clients_of
from fedpatch.simulator.clients.masked_uplink import MaskedUplink
from fedpatch.simulator.clients.patches import Patches, check_blocks
from fedpatch.simulator.clients.population import Population, load_population
from fedpatch.simulator.clients.transport import SimulatedTransport, report_of
from fedpatch.simulator.experiment.checkpoint import Saved, load, save
from fedpatch.simulator.experiment.client_selection import select
from fedpatch.simulator.experiment.ranks import ONE_RANK, RankedCohort, Ranks
from fedpatch.simulator.kernels.sparse_features import can_leave_out_features, used_features
from fedpatch.simulator.learners.baselines import check_baseline, kept_between_rounds, kind_of_steps
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.norm_bounded_learner import (
    ChangeRound,
    SpooledRound,
    fold_spooled,
    read_spooled,
    remove_spooled,
)
from fedpatch.simulator.learners.private_rounds import fold_private
from fedpatch.simulator.learners.protocols import Cohort, CohortMember
from fedpatch.simulator.learners.reference_learner import control_schema, copy_schema
from fedpatch.simulator.learners.stacked_learner import StackedCohort
from fedpatch.simulator.learners.worker_pool import Workers
from fedpatch.simulator.spec.study import (
    BASELINES,
    EVERYTHING,
    MEAN,
    UNBOUNDED,
    AttackOutcome,
    Outcome,
    Point,
    Study,
    client_id,
)

SAVE_EVERY_S = 15.0
SAVE_SHARE = 0.05
"""Share of the time that saving may take: a population with a model for each client is large."""


_BLOCKS_CHANGE = threading.Lock()
_thread_counts: list[int] = []
"""The number of threads before the first open block of `one_thread`, and 1 for each open block."""


def simulate(  # noqa: PLR0913  (hooks of the caller, each by name)
    study: Study,
    *,
    workers: int = 1,
    device: str = "cpu",
    on_point: Callable[[Point], None] = lambda point: None,
    stopped: Callable[[], bool] = lambda: False,
    saved: Path | None = None,
    root: Path | None = None,
    on_end: Callable[[Mapping[int, float]], None] | None = None,
    task: Task | None = None,
    ranks: Ranks = ONE_RANK,
) -> Outcome:
    """Simulate a study over processes or ranks; the result does not depend on their number.

    Simulations in threads of one process alternate, round by round.

    Args:
        workers: Number of processes.
        device: "cpu" or "cuda".
        on_point: Called with each point of the curve as soon as it is known; first with those of an earlier call.
        stopped: Called between rounds; True ends the simulation, with an outcome that is not complete.
        saved: Folder of the state, also after the last round; the same call resumes from it. The caller deletes it after
            storing the outcome. None: no state is saved.
        root: Folder for data files; None: `data_root()`.
        on_end: Called after the last round with the user accuracy of every client that counts, by its number.
        task: The study's task if it cannot be found by name; for one worker only.
        ranks: The group of processes that torchrun or another launcher started.

    Returns:
        The outcome.

    Raises:
        DataError: The data cannot be used.
        UsageError: The terms, or the state in `saved`, cannot be used.
        UpdateRefused: Training diverges.
    """
    task = task or find_task(study.task)
    if root is not None and task.frozen_file is not None:
        use_data_root(root)
    folder, try_out = root or data_root(), partial(require_trainable, task, holder="client 0")
    with one_thread():
        with TORCH_TURN:
            population = load_population(task, study.data, study.clients, study.seed, folder, try_out)
            bad = bad_clients_of(study, population)
            population = population if bad is None else bad.population
            make_cohort = partial(_cohort, workers=workers, device=device, ranks=ranks)
            simulation = Simulation(study, task, population, make_cohort, bad)
        try:
            before = ranks.agree(lambda: load(saved, study) if saved else None)
            if before is not None:
                simulation.restore(before)
                for point in simulation.points:
                    on_point(point)
            outcome = _play(simulation, on_point, stopped, saved, ranks)
            if bad is not None and outcome.complete:
                outcome = replace(outcome, attack=_attack_outcome(simulation, bad))
            if on_end is not None and outcome.complete:
                on_end(simulation.user_accuracies())
            return outcome
        finally:
            simulation.close()


def _play(
    simulation: Simulation,
    on_point: Callable[[Point], None],
    stopped: Callable[[], bool],
    saved: Path | None,
    ranks: Ranks,
) -> Outcome:
    due = time.monotonic() + SAVE_EVERY_S
    while not ranks.agree(lambda: simulation.over or stopped()):
        with TORCH_TURN:
            point = simulation.step()
        on_point(point)
        if saved and (begun := time.monotonic()) > due:
            save(saved, simulation.study, simulation.state())
            due = time.monotonic() + max(SAVE_EVERY_S, (time.monotonic() - begun) / SAVE_SHARE)
    if saved:
        save(saved, simulation.study, simulation.state())
    return simulation.outcome(complete=ranks.agree(lambda: simulation.over))


def _attack_outcome(simulation: Simulation, bad: BadClients) -> AttackOutcome:
    found = bad.found(simulation.pulls)
    if bad.backdoor is None:
        return AttackOutcome(tuple(sorted(bad.clients)), found)
    tests = bad.backdoor.triggered_tests(bad.population)
    honest = [client for client, counts in enumerate(bad.population.counts_in_ua) if counts]
    rates = simulation.measure_on(tests, clients_with_tests(tests, honest))
    return AttackOutcome(tuple(sorted(bad.clients)), found, float(np.mean(rates)) if rates else None)


class Simulation:
    """A simulation between two rounds: `step` trains a round, except in the first call, and measures.

    `change` may replace the updates of a round before they are aggregated, with bounds or without. `clipped` counts the
    bounded updates. `pulls` has, by client, the share of its change that bounds and rule removed, summed over the rounds.
    """

    def __init__(
        self,
        study: Study,
        task: Task,
        population: Population,
        make_cohort: Callable[[Task, LearnerContext], Cohort],
        change: ChangeRound | None = None,
    ) -> None:
        self.study, self.population = study, population
        self.metric = task.metric_terms
        self.points: list[Point] = []
        self.strategy: Strategy = (
            find_strategy(study.strategy, study.server_learning_rate) if study.strategy not in BASELINES else FedAvg()
        )
        plan = self.strategy.plan(study.learning_rate, study.batch_size, study.epochs, study.steps, study.seed)
        plan = replace(plan, **make_terms(study.prox, study.phases, study.personal, study.finish))
        with torch.random.fork_rng(devices=[]):
            model = new_model(task)
        check_baseline(study, model)
        _check_steps(study)
        if not any(population.counts_in_ua):
            raise DataError("no client counts in user accuracy; take fewer noisy ones")
        schema = schema_of(model)
        self._frozen = schema.frozen.digest
        initial = initial_tensors(task, study.seed)
        whole = schema.with_moments(self.strategy.moments)
        private = _private_names(study, whole)
        require_whole_ties(model, private)
        require_fitting(plan, [one.name for one in schema.specs if one.trainable], private)
        self.public: Schema = schema.subset(set(schema.names) - private)
        kept_besides = copy_schema(whole) if plan.personal else kept_between_rounds(study.strategy, schema)
        if plan.has_controls:
            kept_besides = control_schema(self.public)
        kept = Schema((*whole.subset(private).specs, *kept_besides.specs))
        self.patches = Patches(kept, initial, study.clients)
        self.server: ServerState = begin_strategy(
            self.strategy, {name: initial[name] for name in self.public.names}, self.public
        )
        self._batches = [0] * study.clients
        per_step = kind_of_steps(study.strategy, plan).batches_per_step
        self._batches_per_round = [plan.steps_for(count) * per_step for count in population.num_examples]
        features = used_features(population) if can_leave_out_features(model, private) else None
        travelling = self.strategy.travelling(self.public)
        masked = (
            MaskedUplink(study, travelling, self.server.tensors, population.num_examples, self.metric)
            if study.masked
            else None
        )
        self._wire = SimulatedTransport(study, travelling, masked)
        self._plan = plan
        self._limits = limits_of(study)
        self._change, self.clipped = change, 0
        if study.dp != UNBOUNDED:
            check_public(self.public)
        plain = (study.norm_bound, study.dp, study.aggregate) == (UNBOUNDED, UNBOUNDED, MEAN)
        apart = not (plain and not study.masked and change is None) and len(travelling) > 0
        self.pulls = dict.fromkeys(range(study.clients), 0.0)
        self._spool = TemporaryDirectory(prefix="fedpatch-simulate-") if apart else None
        spool = None if self._spool is None else Path(self._spool.name)
        context = LearnerContext(study, population, features, self.patches, plan, travelling, self._wire.uplink, spool)
        self._task, self._context = task, context
        self._cohort = make_cohort(task, context)
        self._ids = {client_id(client): client for client in range(study.clients)}

    @property
    def over(self) -> bool:
        """True if the target is reached or the last round is done."""
        if not self.points:
            return False
        last = self.points[-1]
        return last.round >= self.study.rounds or self.study.reached(last.user_accuracy)

    def step(self) -> Point:
        """Train the next round, unless there is no point yet, and measure for the round after it; return the new point."""
        started = time.perf_counter()
        trained = self._selected()
        loss = self._train(trained) if self.points else None
        self._cohort.begin(as_torch(self._wire.read(self.server)))
        # If every client of a small cohort is noisy, all clients that count in UA are measured instead.
        counts = self.population.counts_in_ua
        counting = [one for one in self._selected() if counts[one]] or [
            one for one in range(len(counts)) if counts[one]
        ]
        accuracies = self._measure(counting)
        less_is_worse = self.metric.goal == "max"
        point = Point(
            round=self.server.round,
            user_accuracy=float(accuracies.mean()),
            p10=self.metric.p10(accuracies.tolist()),
            lowest=float(accuracies.min() if less_is_worse else accuracies.max()),
            counted=len(counting),
            train_loss=loss,
            seconds=time.perf_counter() - started,
            bytes_up=self._wire.bytes_up(trained) if self.points else None,
            bytes_down=self._wire.bytes_down(self._selected()),
        )
        self.points.append(point)
        return point

    def user_accuracies(self) -> dict[int, float]:
        """Return the user accuracy of every client that counts, with the present global model and its own patch."""
        clients = [client for client, counts in enumerate(self.population.counts_in_ua) if counts]
        return dict(zip(clients, map(float, self._measure(clients)), strict=True))

    def measure_on(self, population: Population, clients: list[int]) -> list[float]:
        """Return the metric of clients with the present global model and their own patches, on other test data.

        Args:
            population: The other data, of the same clients.
            clients: The clients to measure, each with test examples.
        """
        context = replace(self._context, population=population, features=None, uplink=None, spool=None)
        learner = make_learner(self._task, context)
        learner.begin(as_torch(self._wire.read(self.server)))
        return [learner.measure(client) for client in clients]

    def state(self) -> Saved:
        """Return the state to resume from."""
        patches = {name: block.numpy() for name, block in self.patches.values.items()}
        held = self._wire.state()
        pulls = list(self.pulls.values())
        return Saved(self.server, patches, self._batches, tuple(self.points), held, self._frozen, pulls)

    def restore(self, before: Saved) -> None:
        """Resume from `before`. Raises UsageError if the task's model has changed since."""
        self._check_model(before)
        self.server, self._batches, self.points = before.server, list(before.batches), list(before.points)
        self.pulls |= enumerate(before.pulls)
        for name, block in self.patches.values.items():
            block.copy_(torch.from_numpy(before.patches[name]))
        self._cohort.begin(as_torch(self._wire.read(self.server)))

    def _check_model(self, before: Saved) -> None:
        try:
            self.strategy.travelling(self.public).check(before.server.tensors)
            self.strategy.optimizer_schema(self.public).check(before.server.server)
            check_blocks("patches", self.patches.values, before.patches)
            self._wire.restore(before.versions)
            if before.frozen != self._frozen:
                raise SchemaMismatch("its frozen values differ")
        except SchemaMismatch as error:
            raise UsageError(
                f"what was saved of this simulation is of another version of the task's model ({error}); "
                "delete it to begin anew"
            ) from error

    def outcome(self, *, complete: bool) -> Outcome:
        """Return the result so far."""
        return Outcome(self.study, tuple(self.points), complete, versions())

    def close(self) -> None:
        """End the worker processes."""
        self._cohort.close()
        if self._spool is not None:
            self._spool.cleanup()

    def _measure(self, clients: list[int]) -> Array:
        """Return the user accuracies of clients. A metric that leaves its range only after training has diverged."""
        try:
            accuracies = np.array(self._cohort.measure(clients))
            _check_allowed(self.study.task, self.metric, clients, accuracies)
        except DataError as error:
            if not self.points:
                raise
            raise UpdateRefused(
                "out_of_range",
                f"round {self.server.round}: {error}; before training it did: try a smaller learning rate",
            ) from error
        return accuracies

    def _selected(self) -> list[int]:
        """Return the clients of the next round, as the coordinator would select them."""
        chosen = select(list(self._ids), self.study.participation, 1.0, 1, self.study.seed, self.server.round + 1)
        return [self._ids[one] for one in chosen.invited]

    def _train(self, selected: list[int]) -> float:
        members = self._members(selected)
        mean, losses = self._cohort.train(members)
        masked = self._masked_mean(members, losses)
        folded = self._folded(selected) if masked is None else None
        if masked is not None:
            mean = as_torch(masked)
        elif folded is not None:
            mean = as_torch(folded.mean)
        try:
            kept = untrained(self.server.tensors, self.public)
            require_finite({name: value.numpy() for name, value in mean.items()}, kept=kept)
        except UpdateRefused as error:
            raise UpdateRefused(
                "not_finite", f"values became infinite in round {self.server.round + 1}: {error}"
            ) from error
        for one in members:
            self._batches[one.client] += self._batches_per_round[one.client]
        before, travelling = self.server, self.strategy.travelling(self.public)
        if folded is not None:
            self.server = replace(self.server, references=folded.references)
        aggregate = {spec.name: stored(mean[spec.name].numpy(), spec) for spec in travelling.specs}
        if self.strategy.has_controls:
            ids, number = [client_id(client) for client in selected], self.server.round + 1
            added = add_controls(self.server, aggregate, ids, round_number=number, population=self.study.clients)
            aggregate, self.server = added.mean, added.kept_in(self.server)
        self.server = (
            apply_strategy(self.strategy, self.server, aggregate, self.public)
            if len(self.public)
            else replace(self.server, round=self.server.round + 1)
        )
        self.server = self._wire.follow(before, self.server)
        return float(np.mean(losses))

    def _masked_mean(self, members: list[CohortMember], losses: list[float]) -> dict[str, Array] | None:
        """Return the mean of the masked sums; None in a study without them."""
        if self._wire.masked is None or self._spool is None:
            return None
        folder, base, plan = Path(self._spool.name), self._wire.read(self.server), self._plan
        clients, counts = [one.client for one in members], self.population.num_examples
        self._change_spool(folder, clients, base)
        mean = self._wire.masked.mean(
            self.server.round + 1,
            clients,
            base=base,
            update_of=partial(read_spooled, folder),
            reports={
                one.client: report_of(one.client, counts[one.client], plan.steps_for(counts[one.client]), loss)
                for one, loss in zip(members, losses, strict=True)
            },
            seeds={one.client: update_seed(plan.seed, client_id(one.client), one.first_batch) for one in members},
        )
        remove_spooled(folder, clients)
        return mean

    def _change_spool(self, folder: Path, clients: list[int], base: Mapping[str, Array]) -> None:
        """Let an attack, if there is one, change the updates of a round."""
        if self._change is not None:
            trained = [spec.name for spec in self.strategy.travelling(self.public).specs if spec.trainable]
            self._change(SpooledRound(folder, clients, self.server.round + 1, base, trained))

    def _folded(self, selected: list[int]) -> AggregateResult | None:
        if self._spool is None:
            return None
        folder, base = Path(self._spool.name), self._wire.read(self.server)
        self._change_spool(folder, selected, base)
        if self.study.dp == CENTRAL:
            number, schema = self.server.round + 1, self.strategy.travelling(self.public)
            private = fold_private(folder, selected, study=self.study, round_number=number, schema=schema, base=base)
            return AggregateResult(private, references=self.server.references)
        folded = fold_spooled(
            folder,
            selected,
            self.population.num_examples,
            schema=self.strategy.travelling(self.public),
            state=self.server,
            base=base,
            limits=self._limits,
            plan=self._plan,
        )
        self.clipped += len(folded.clipped)
        for device, pull in folded.pulls.items():
            self.pulls[self._ids[device]] += pull
        return folded

    def _members(self, selected: list[int]) -> list[CohortMember]:
        examples = self.population.num_examples
        counts = {client_id(one): 1 if self.strategy.has_controls else examples[one] for one in selected}
        weighs = example_weights(counts, self._limits.examples)
        total = sum(weighs.values())
        return [CohortMember(one, self._batches[one], weighs[client_id(one)] / total) for one in selected]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: two are no faster for such small products, and far slower beside other programs.

    The number of threads is one for the whole process. The last of several overlapping blocks restores it.
    """
    with _BLOCKS_CHANGE:
        if not _thread_counts:
            _thread_counts.append(torch.get_num_threads())
        _thread_counts.append(1)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _BLOCKS_CHANGE:
            _thread_counts.pop()
            if len(_thread_counts) == 1:
                torch.set_num_threads(_thread_counts.pop())


def _check_steps(study: Study) -> None:
    if study.steps < 1 and study.epochs < 1:
        raise UsageError("the study has neither steps nor epochs, so there is nothing to train; give it at least one")


def _check_allowed(task: str, metric: MetricTerms, clients: list[int], accuracies: Array) -> None:
    for client, accuracy in zip(clients, accuracies, strict=True):
        if not metric.allows(accuracy):
            raise DataError(
                f"task {task!r}: its metric gave {accuracy} for client {client}; `metric` must return {metric.range_words}"
            )


def limits_of(study: Study) -> Limits:
    """Return the bounds and the rule of aggregation of a study."""
    return Limits(
        parse_norm_bound(study.norm_bound),
        parse_examples_cap(study.max_num_examples),
        parse_aggregate_rule(study.aggregate),
    )


def versions() -> dict[str, str]:
    """Return the versions of programs, on which a result depends besides its terms."""
    return {
        "fedpatch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _cohort(task: Task, context: LearnerContext, *, workers: int, device: str, ranks: Ranks) -> Cohort:
    if ranks.count > 1:
        if device != "cpu":
            raise UsageError(f"--device {device}: the ranks of torchrun compute on the CPU; use --device cpu")
        return RankedCohort(make_learner(task, context), context, ranks)
    if device != "cpu":
        if context.plan.has_controls:
            raise UsageError(f"--strategy {context.study.strategy}: computed on the CPU only; use --device cpu")
        if context.plan.terms:
            raise UsageError(f"--{' and --'.join(context.plan.terms)}: computed on the CPU only; use --device cpu")
        if context.spool is not None:
            named = "--norm-bound, --aggregate, --attack, --dp and --secure"
            raise UsageError(f"{named} are computed on the CPU only; use --device cpu")
        if context.uplink is not None:
            raise UsageError(f"--encoding {context.study.encoding} is computed on the CPU only; use --device cpu")
        return StackedCohort(task, context, device)
    return InProcess(make_learner(task, context)) if workers <= 1 else Workers(context.study.task, context, workers)


def _private_names(study: Study, schema: Schema) -> frozenset[str]:
    if study.strategy == "independent" or study.private == EVERYTHING:
        return frozenset(schema.names)
    return parse_policy(study.private).private_names(schema)


def as_torch(tensors: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return copies of arrays as tensors."""
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in tensors.items()}
