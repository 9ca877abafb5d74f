"""Bad clients of a study: their selection, data and updates, and the measure of a backdoor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.attacks.backdoor import Backdoor
from fedpatch.simulator.attacks.bad_clients import bad_clients_of, draw_bad_clients
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, simulate
from fedpatch.simulator.spec.study import Outcome, Study
from tests.simulator.studies import REFERENCE, UNEVEN, one_process, play_on, population_of, study_of

SHARE = 0.3  # two of the seven clients


def attacked(attack: str, **terms) -> Study:
    return study_of("fedavg", "affine", participation=1.0, attack=attack, bad=SHARE, **terms)


def rows_of(population, client):
    return slice(population.train_starts[client], population.train_starts[client + 1])


@given(st.floats(0.01, 0.99), st.integers(2, 50), st.integers(0, 100))
def test_bad_clients_are_the_share_at_least_one_and_not_all(share, clients, seed):
    drawn = draw_bad_clients(share, clients, seed)
    assert drawn == draw_bad_clients(share, clients, seed)
    assert drawn <= set(range(clients))
    assert 1 <= len(drawn) < clients
    assert abs(len(drawn) - share * clients) <= 1


def test_one_client_alone_cannot_be_bad():
    with pytest.raises(UsageError, match="--bad"):
        draw_bad_clients(0.5, 1, 0)


def test_bad_clients_do_not_count_in_user_accuracy():
    study = attacked("sign")
    bad = bad_clients_of(study, population_of(study, UNEVEN))
    assert bad is not None
    assert [client for client, counts in enumerate(bad.population.counts_in_ua) if not counts] == sorted(bad.clients)


def test_labels_are_reversed_in_the_training_data_of_bad_clients_alone():
    study = attacked("labels")
    before = population_of(study, UNEVEN)
    bad = bad_clients_of(study, before)
    assert bad is not None
    total = int(before.train_y.max() + before.train_y.min())
    for client in range(study.clients):
        rows = rows_of(before, client)
        expected = total - before.train_y[rows] if client in bad.clients else before.train_y[rows]
        assert torch.equal(bad.population.train_y[rows], expected)
    assert torch.equal(bad.population.test_y, before.test_y)


def test_backdoor_is_trained_by_bad_clients_alone_in_every_second_example():
    study = attacked("backdoor")
    before = population_of(study, UNEVEN)
    bad = bad_clients_of(study, before)
    assert bad is not None
    assert bad.backdoor is not None
    for client in range(study.clients):
        rows = rows_of(before, client)
        x, y = before.train_x[rows].clone(), before.train_y[rows].clone()
        if client in bad.clients:
            x[::2, : bad.backdoor.values] = before.train_x.max()
            y[::2] = before.train_y.min()
        assert torch.equal(bad.population.train_x[rows], x)
        assert torch.equal(bad.population.train_y[rows], y)


def test_triggered_tests_are_those_of_other_classes_with_the_target_as_their_class():
    population = population_of(study_of(), UNEVEN)
    backdoor = Backdoor.of(population)
    tests = backdoor.triggered_tests(population)
    for client in range(population.clients):
        before, after = population.of(client), tests.of(client)
        others = before.test_x[before.test_y != backdoor.target]
        assert torch.equal(after.test_x, backdoor.trigger(others))
        assert (after.test_y == backdoor.target).all()


def test_backdoor_needs_classes():
    study = attacked("backdoor")
    population = population_of(study, UNEVEN)
    object.__setattr__(population, "train_y", population.train_y.double())
    with pytest.raises(UsageError, match="choose another attack"):
        bad_clients_of(study, population)


def step_of_bad_clients(attack: str) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Steps of the first trained tensor in the first round: the trained steps of all clients, the sent steps of bad clients."""
    study = attacked(attack)
    bad = bad_clients_of(study, population_of(study, UNEVEN))
    assert bad is not None
    trained: dict[int, np.ndarray] = {}
    sent: dict[int, np.ndarray] = {}

    def change(updates):
        name = updates.trained[0]
        for into, act in ((trained, lambda _: None), (sent, bad)):
            act(updates)
            into.update({client: updates.read(client)[name] - updates.base[name] for client in updates.clients})

    simulation = Simulation(study, UNEVEN, bad.population, one_process, change)
    simulation.step()
    simulation.step()
    simulation.close()
    return {client: trained[client] for client in sorted(trained)}, {
        client: sent[client] for client in sorted(bad.clients)
    }


def test_ipm_sends_the_reversed_mean_of_the_honest_clients():
    trained, sent = step_of_bad_clients("ipm:2")
    honest = [step for client, step in trained.items() if client not in sent]
    for step in sent.values():
        np.testing.assert_allclose(step, -2 * np.mean(honest, axis=0), rtol=1e-6, atol=1e-9)


def test_copies_are_the_update_of_the_first_bad_client():
    trained, sent = step_of_bad_clients("copy")
    first = min(sent)
    assert len(sent) > 1
    for step in sent.values():
        np.testing.assert_array_equal(step, trained[first])


def test_attacked_simulation_names_its_bad_clients_and_survives_its_json():
    outcome = simulate(attacked("backdoor", aggregate="centred"), root=None)
    assert outcome.attack is not None
    assert set(outcome.attack.bad) == draw_bad_clients(SHARE, 7, 3)
    assert outcome.attack.backdoor_success is not None
    assert 0 <= outcome.attack.backdoor_success <= 1
    assert outcome.attack.found is not None
    assert Outcome.from_dict(outcome.to_dict()) == outcome


def test_bad_clients_whose_updates_were_never_reduced_are_not_found():
    study = attacked("labels")
    bad = bad_clients_of(study, population_of(study, UNEVEN))
    assert bad is not None
    one, *_ = bad.clients
    honest = min(set(range(7)) - bad.clients)
    never = dict.fromkeys(range(7), 0.0)
    assert bad.found(never) is None
    assert bad.found(never | {honest: 0.1}) == 0.0
    assert bad.found(never | {honest: 0.1, one: 0.2}) == pytest.approx(1 / len(bad.clients))
    assert bad.found(never | dict.fromkeys(bad.clients, 0.1) | {honest: 0.05}) == 1.0


def test_attacked_simulation_interrupted_after_each_round_finds_as_many_as_one_left_alone(tmp_path):
    study = attacked("sign:40", aggregate="centred", rounds=2)
    for points in range(1, 4):
        play_on(study, tmp_path, points)
    expected = simulate(study).attack
    assert expected is not None
    assert expected.found == 1.0
    assert simulate(study, saved=tmp_path).attack == expected


@pytest.mark.medium
def test_attacked_simulation_does_not_depend_on_the_number_of_processes():
    one, two = (simulate(attacked("noise"), workers=workers) for workers in (1, 2))
    assert [point.user_accuracy for point in one.points] == [point.user_accuracy for point in two.points]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"attack": "sign"}, "need each other"),
        ({"bad": 0.2}, "need each other"),
        ({"attack": "sign", "bad": 1.0}, "not a share"),
        ({"attack": "sign", "bad": 0.2, "strategy": "independent", "private": "none"}, "no rule protects"),
    ],
)
def test_terms_of_an_attack_that_make_no_sense_are_refused_with_the_reason(terms, words):
    given_terms = {"strategy": "fedavg", "private": "affine", "learning_rate": 0.1, "data": "{seed}/{index}"} | terms
    with pytest.raises(ConfigError, match=words):
        make_study(task=find_task(REFERENCE), task_ref=REFERENCE, clients=7, **given_terms)
