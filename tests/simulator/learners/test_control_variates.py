"""SCAFFOLD in the simulator gives the results of a textbook's Algorithm 1 and of the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import Array
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, simulate
from fedpatch.simulator.learners.reference_learner import control_in
from fedpatch.simulator.spec.study import client_id
from tests.simulator.studies import (
    BATCH,
    REFERENCE,
    UNEVEN,
    Deployed,
    assert_close,
    assert_like_deployed,
    build_model,
    client_data,
    play_on,
    simulation_of,
    study_of,
    without_seconds,
)
from tests.support.oracle import Values, arrays_of, load
from tests.support.textbook import scaffold

ROUNDS, RATE = 6, 0.2


def by_the_book(**changes: Any) -> tuple[Simulation, tuple[Values, Values, dict[str, Values]]]:
    """A simulation of ROUNDS rounds, and the textbook's result of the same rounds."""
    study = study_of("scaffold", **changes)
    simulation, deployed, rounds = simulation_of(study), Deployed(study), []
    simulation.step()
    for _ in range(ROUNDS):
        rounds.append([client_id(one) for one in deployed.selected()])
        deployed.play()
        simulation.step()
    model = build_model()
    load(model, initial_tensors(UNEVEN, study.seed))
    data = {client_id(one): arrays_of(client_data(one, study.seed)) for one in range(study.clients)}
    given: dict[str, Any] = {"eta_l": RATE, "passes": study.epochs, "batch_size": BATCH, "seed": study.seed}
    return simulation, scaffold(model, data, rounds, eta_g=study.server_learning_rate or 1.0, **given)


def controls(values: Values) -> Values:
    return {f"{name}:control": value for name, value in values.items()}


@pytest.mark.parametrize("part", ["control", "weights"])
def test_a_clipped_update_moves_no_control_variate_and_the_servers_stays_the_mean_of_the_devices(part):
    """In every round one device multiplies its values by 1000."""
    study = study_of("scaffold", participation=1.0, norm_bound="auto:3")
    deployed, honest = Deployed(study), Deployed(study)

    def far(client: int, update: dict[str, Array]) -> dict[str, Array]:
        chosen = {name for name in update if name.endswith(":control") == (part == "control")}
        return {name: 1000 * value if client == 2 and name in chosen else value for name, value in update.items()}

    for _ in range(ROUNDS):
        deployed.play(far), honest.play()
    assert deployed.clipped >= ROUNDS
    assert not deployed.controls[2] and client_id(2) not in deployed.state.counted
    found = {name: value for name, value in deployed.state.tensors.items() if name.endswith(":control")}
    kept = [one for one in deployed.controls if one]
    assert_close(found, {name: np.sum([one[name] for one in kept], axis=0) / study.clients for name in found})
    farthest = max(np.abs(value).max() for name, value in honest.state.tensors.items() if name in found)
    assert max(np.abs(value).max() for value in found.values()) < 3 * farthest


@pytest.mark.parametrize("eta_g", [1.0, 0.5])
@pytest.mark.parametrize("participation", [0.3, 1.0])
def test_it_is_algorithm_1(participation, eta_g):
    """Clients of different sizes have equal weight; some take part twice or more, and with a share of 0.3 some never."""
    simulation, (x, c, c_i) = by_the_book(participation=participation, server_learning_rate=eta_g, epochs=2)
    assert_close(simulation.server.tensors, x | controls(c))
    kept = {client_id(one): control_in(simulation.patches.of(one)) for one in range(simulation.study.clients)}
    for client, values in c_i.items():
        assert_close(kept[client], controls(values))
    for name, value in controls(c).items():
        np.testing.assert_allclose(value, np.mean([one[name] for one in kept.values()], axis=0), atol=1e-12)
    assert np.abs(c["fc1.weight"]).max() > 1e-3
    taken = [client for client in kept if np.abs(kept[client]["fc1.weight:control"]).max() > 0]
    assert set(simulation.server.counted) == set(taken)
    assert (len(taken) < len(kept)) == (participation < 1)


@pytest.mark.parametrize("private", ["none", "affine", "names:fc2.weight,fc2.bias"])
def test_simulation_is_the_deployed_system(private):
    assert_like_deployed(study_of("scaffold", private))


def test_values_that_stay_private_have_no_control_variate():
    simulation = assert_like_deployed(study_of("scaffold", "names:fc2.weight,fc2.bias", finish="private:1"))
    assert not [name for name in simulation.server.tensors if name.startswith("fc2")]
    patch = simulation.patches.of(0)
    assert not np.any(patch["fc2.weight:control"])
    assert "fc2.weight:control" not in control_in(patch)


def test_study_goes_on_where_it_stopped(tmp_path):
    study = study_of("scaffold", "affine", rounds=3)
    whole = without_seconds(play_on(study, tmp_path / "whole", 4))
    play_on(study, tmp_path / "cut", 2)
    assert without_seconds(play_on(study, tmp_path / "cut", 4)) == whole


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"norm_bound": "auto:2"}, "--norm-bound: scaffold keeps control variates, whose mean it would change"),
        ({"max_num_examples": "auto:2"}, "--max-num-examples: scaffold keeps control variates"),
        ({"attack": "sign", "bad": 0.4}, "--attack: scaffold keeps control variates"),
        ({"secure": "groups", "clients": 20}, "scaffold cannot be summed under masks; use --strategy fedavg"),
        ({"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0}, "control variates, which have another scale"),
        ({"aggregate": "centred"}, "centred would part c of scaffold"),
    ],
)
def test_settings_that_would_part_the_controls_are_refused(given, words):
    known = {"clients": 3, "strategy": "scaffold", "learning_rate": 0.1, **given}
    with pytest.raises((ConfigError, UsageError), match=words):
        make_study(task=UNEVEN, task_ref=REFERENCE, **known)


@pytest.mark.parametrize("terms", [{"prox": 0.1}, {"phases": "public:1"}, {"personal": "ditto:1"}])
def test_terms_that_do_not_step_by_plain_sgd_are_refused(terms):
    with pytest.raises(UsageError, match="control variates correct steps of plain SGD; leave"):
        simulation_of(study_of("scaffold", **terms))


def test_control_variates_are_not_computed_on_a_gpu():
    with pytest.raises(UsageError, match="--strategy scaffold: computed on the CPU only; use --device cpu"):
        simulate(study_of("scaffold"), device="cuda")
