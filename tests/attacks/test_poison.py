"""With the default bounds, poisoned updates that pass every check do not harm the fleet, and their device is named."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.training.norm_bounds import FLEETS, play
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.shared.wire.messages import Committed
from tests.attacks.arena import HONEST, Arena, Outcome, honest_fleet
from tests.attacks.by_poison import POISONER, POISONS, poison
from tests.support.brokers import Mosquitto
from tests.system.commands import run

LOSS = 0.05
"""User accuracy that an attack may cost; docs/explanation/threat-model.md has the means of five seeds."""

DEFAULT = RunSettings().norm_bound


@pytest.fixture(scope="module")
def unattacked() -> float:
    """User accuracy of five devices when the sixth is honest."""
    return float(play(FLEETS[0], DEFAULT, 0, "none")["user_accuracy"])


@pytest.mark.medium
@pytest.mark.parametrize("attack", [one.measured_as for one in POISONS if one.measured_as] + ["step counts of 1e9"])
def test_user_accuracy_of_the_honest_stays_with_the_default(attack, unattacked):
    """One of six devices attacks in every round, after all checks; the coordinator's own code computes the mean."""
    attacked = play(FLEETS[0], DEFAULT, 0, attack)
    assert not attacked["broken"]
    assert attacked["user_accuracy"] >= unattacked - LOSS


@pytest.mark.medium
@pytest.mark.parametrize("attack", ["noise x 1e6", "running_var of 1e30"])
def test_without_a_bound_the_same_attack_ruins_the_model(attack, unattacked):
    """This proves that the bound protects the model, not the task."""
    assert play(FLEETS[0], "off", 0, attack)["user_accuracy"] < unattacked - 5 * LOSS


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A run over a broker, with three honest agents."""
    with Mosquitto() as broker:
        arena = Arena(broker, "poisoned", tmp_path_factory.mktemp("poisoned"))
        with honest_fleet(arena) as fleet, ThreadPoolExecutor(1) as pool:
            fleet.wait_ready()
            verdicts = pool.submit(poison, arena)
            outcome = arena.run(len(HONEST) + 1, RunSettings().quorum, rounds=len(POISONS))
            assert all(isinstance(one.answer, Committed) for one in verdicts.result(timeout=60))
        arena.spy.stop()
        yield outcome


system = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]


@pytest.mark.parametrize("at", range(len(POISONS)), ids=[one.name for one in POISONS])
@pytest.mark.usefixtures("poisoned")
class TestPoisonedRun:
    """Records of the rounds."""

    pytestmark = system

    def test_record_names_the_device_and_the_part(self, poisoned, at):
        record = poisoned.summary["rounds"][at]
        assert record["outcome"] == "aggregated"
        assert POISONS[at].part in record["bounded_devices"][POISONER]
        assert record["bounded"]["norm"] == len(record["bounded_devices"])


@pytest.mark.usefixtures("poisoned")
class TestAfterIt:
    """Log, output and model of a poisoned run."""

    pytestmark = system

    def test_log_names_the_device_with_the_remedy(self, poisoned):
        assert f"the updates of {POISONER} are far" in poisoned.stderr
        assert "fedpatch devices quarantine" in poisoned.stderr

    def test_show_names_the_device(self, poisoned):
        done = run("fedpatch", "show", "last", "--state-dir", poisoned.state_dir)
        assert f"pulled far: {POISONER} (100% of its change: weights)" in done.out

    def test_model_is_of_the_size_of_the_honest_ones(self, poisoned):
        state = load_checkpoint(run_directory(poisoned.state_dir, poisoned.summary["run"]))[0]
        assert all(np.abs(values.astype(np.float64)).max() < 1e4 for values in state.tensors.values())
