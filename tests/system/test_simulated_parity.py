"""A simulation and a run of the deployed system over a real broker give the same model and the same patches."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.device_agent.state.patch_store import PatchKey, PatchState, PatchStore
from fedpatch.shared.tasks.task import Task, find_task
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import Tensors
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, one_thread
from fedpatch.simulator.learners.cohort_training import InProcess, encoded, make_learner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import Learner
from fedpatch.simulator.learners.reference_learner import OneByOneLearner
from fedpatch.simulator.spec.study import EXACT, Study, client_id
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium]

TASK = "tests.system.wide_digits_task:TASK"
CLIENTS, ROUNDS, SEED = 4, 3, 5
TOLERANCE = 1e-6
_EACH_ONCE = {("fedadam", "none"), ("fedavg-adam", "affine")}
TERMS = [
    pytest.param(*terms, marks=() if terms in _EACH_ONCE else pytest.mark.slow)
    for terms in itertools.product(("fedavg", "fedadam", "fedavg-adam"), ("none", "stats", "affine", "all"))
]


def study_of(strategy: str, private: str, encoding: str = EXACT) -> Study:
    """Return a study with half of the clients in each round; other settings are the task's own."""
    return make_study(
        task=find_task(TASK),
        task_ref=TASK,
        clients=CLIENTS,
        strategy=strategy,
        private=private,
        participation=0.5,
        rounds=ROUNDS,
        seed=SEED,
        encoding=encoding,
    )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One agent for each client, with its name and data, for all tests, since agents need seconds to start."""
    data = study_of("fedavg", "none").data
    with Mosquitto() as broker, Fleet(broker.url, tmp_path_factory.mktemp("fleet")) as fleet:
        for index in range(CLIENTS):
            spec = data.format(index=index, count=CLIENTS, seed=SEED)
            fleet.start(client_id(index), TASK, spec, options=["--private", "none"])
        fleet.wait_ready()
        yield fleet


def deployed(fleet: Fleet, study: Study, state_dir: Path) -> tuple[RunSummary, ServerState]:
    """Run the study over the network from initial patches; return the summary and the coordinator's state after it."""
    for agent in fleet.agents.values():
        for patch in agent.patches.iterdir():
            patch.unlink()
    names = ("strategy", "private", "seed", "encoding", "rounds", "participation")
    terms = {name: getattr(study, name) for name in names}
    settings = fleet.settings(state_dir, TASK, norm_bound="off", over_select=1.0, quorum=1.0, **terms)
    summary = start_run(settings, Silent())
    state, _, _ = load_checkpoint(run_directory(state_dir, summary.run))
    return summary, state


def simulated(study: Study, learner: Callable[[Task, LearnerContext], Learner] = make_learner) -> Simulation:
    """Simulate the study to its end."""
    task = find_task(study.task)
    population = load_population(task, study.data, study.clients, study.seed, Path(os.devnull))
    simulation = Simulation(study, task, population, lambda task, context: InProcess(learner(task, context)))
    with one_thread():
        while not simulation.over:
            simulation.step()
    return simulation


def patch_of(fleet: Fleet, client: int, private: str) -> PatchState:
    """Return the device's patch."""
    task = find_task(TASK)
    key = PatchKey(task.name, schema_of(task.build_model()).digest, private)
    return PatchStore(fleet.agents[client_id(client)].patches).load(key, "another run", 0)


def assert_close(found: Tensors, expected: Tensors) -> None:
    """Check that names, dtypes and values are the same."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize(("strategy", "private"), TERMS)
def test_a_simulation_is_the_deployed_system_without_the_network(fleet, tmp_path, strategy, private):
    study = study_of(strategy, private)
    summary, state = deployed(fleet, study, tmp_path)
    simulation = simulated(study)
    assert [(one.outcome, one.reported) for one in summary.rounds] == [("aggregated", CLIENTS // 2)] * ROUNDS
    assert [one.user_accuracy for one in summary.rounds] == pytest.approx(
        [point.user_accuracy for point in simulation.points[:-1]]
    )
    assert_close(simulation.server.tensors, state.tensors)
    assert_close(simulation.server.server, state.server)
    for client in range(CLIENTS):
        kept = patch_of(fleet, client, private)
        if kept.batches_done:  # a device that never took part has no patch yet
            assert_close(simulation.patches.of(client), kept.values)


def test_a_simulation_rounds_as_the_deployed_system_does(fleet, tmp_path):
    """With coarse steps in both directions, the server's model and moments are the same, and so is the curve.

    The simulation trains with the device's own code, since weights that differ in the last digit may be rounded differently.
    """
    study = study_of("fedavg-adam", "affine", "delta-int8")
    summary, state = deployed(fleet, study, tmp_path)
    simulation = simulated(study, lambda task, context: encoded(OneByOneLearner(task, context), context))
    assert [one.user_accuracy for one in summary.rounds] == pytest.approx(
        [point.user_accuracy for point in simulation.points[:-1]]
    )
    assert_close(simulation.server.tensors, state.tensors)
    assert_close(simulation.server.server, state.server)
