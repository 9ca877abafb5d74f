"""Devices that train and send a false update: with default settings the run succeeds, and names pulled devices."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.shared.wire.messages import Committed
from fedpatch.simulator.attacks.poisoned_updates import STRENGTHS
from tests.attacks.arena import HONEST, Arena, Outcome, honest_fleet
from tests.attacks.by_lies import LIAR, LIES, LONG, lie
from tests.support.brokers import Mosquitto
from tests.system.commands import run

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deceived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A run over a broker, with three honest agents and one device that sends a false update in each round."""
    with Mosquitto() as broker:
        arena = Arena(broker, "deceived", tmp_path_factory.mktemp("deceived"))
        with honest_fleet(arena) as fleet, ThreadPoolExecutor(1) as pool:
            fleet.wait_ready()
            verdicts = pool.submit(lie, arena)
            outcome = arena.run(len(HONEST) + 1, RunSettings().quorum, rounds=len(LIES))
            assert all(isinstance(one.answer, Committed) for one in verdicts.result(timeout=60))
        arena.spy.stop()
        yield outcome


def test_every_attack_of_the_simulator_is_played_by_a_device():
    assert set(LIES) == set(STRENGTHS)


@pytest.mark.parametrize("at", range(len(LIES)), ids=LIES)
def test_round_with_a_lie_is_aggregated(deceived, at):
    record = deceived.summary["rounds"][at]
    assert (record["outcome"], record["reported"]) == ("aggregated", len(HONEST) + 1)


@pytest.mark.parametrize("attack", LONG)
def test_device_with_a_long_step_is_pulled_farthest(deceived, attack):
    pulls = deceived.summary["rounds"][LIES.index(attack)]["pulls"]
    assert max(pulls, key=pulls.get) == LIAR


def test_show_names_the_liar_among_the_devices_that_were_pulled_most(deceived):
    done = run("fedpatch", "show", "last", "--state-dir", deceived.state_dir)
    assert f"pulled most: {LIAR} (" in done.out


def test_model_is_of_the_size_of_the_honest_ones(deceived):
    state = load_checkpoint(run_directory(deceived.state_dir, deceived.summary["run"]))[0]
    assert all(np.abs(values.astype(np.float64)).max() < 1e4 for values in state.tensors.values())
