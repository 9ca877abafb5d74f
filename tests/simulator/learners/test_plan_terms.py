"""Plans with terms: a simulation gives the results of textbook versions of the papers' algorithms, and of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, simulate
from fedpatch.simulator.learners.reference_learner import copy_in
from fedpatch.simulator.spec.study import Study, client_id
from tests.simulator.studies import (
    BATCH,
    IMAGES,
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
from tests.support.oracle import Client, Values, arrays_of, batches, load, stream_seed
from tests.support.textbook import ClientUpdate, ditto, federate, fedprox, fedrep, fine_tune, pfedme

ROUNDS, RATE = 3, 0.2
HEAD = ("fc2.weight", "fc2.bias")


def by_the_book(study: Study, update: ClientUpdate, private: Sequence[str] = (), passes: int = 1) -> tuple[Values, Any]:
    """The global model and the clients after ROUNDS rounds of the textbook."""
    deployed, rounds = Deployed(study), []
    for _ in range(ROUNDS):
        rounds.append([client_id(one) for one in deployed.selected()])
        deployed.play()
    model = build_model()
    load(model, initial_tensors(UNEVEN, study.seed))
    data = {client_id(one): arrays_of(client_data(one, study.seed)) for one in range(study.clients)}
    given: dict[str, Any] = {"private": private, "passes": passes, "batch_size": study.batch_size, "seed": study.seed}
    return federate(model, data, rounds, update, **given)


def played(study: Study) -> Simulation:
    simulation = simulation_of(study)
    for _ in range(ROUNDS + 1):
        simulation.step()
    return simulation


def assert_by_the_book(study: Study, update: ClientUpdate, private: Sequence[str] = (), passes: int = 1) -> Simulation:
    simulation, (w, clients) = played(study), by_the_book(study, update, private, passes)
    assert_close(simulation.server.tensors, w)
    for number in range(study.clients):
        client: Client = clients[client_id(number)]
        kept = simulation.patches.of(number)
        assert_close({name: kept[name] for name in client.p}, client.p)
    return simulation


@pytest.mark.parametrize("private", [(), HEAD])
def test_prox_is_fedprox(private):
    study = study_of(private="names:" + ",".join(private) if private else "none", prox=0.5)
    assert_by_the_book(study, fedprox(RATE, 0.5, private), private)
    without, _ = by_the_book(study, fedprox(RATE, 0.0, private), private)
    assert np.abs(without["fc1.weight"] - played(study).server.tensors["fc1.weight"]).max() > 1e-3


HEAD_PRIVATE = "names:" + ",".join(HEAD)


def test_a_private_head_is_fedper():
    assert_by_the_book(study_of(private=HEAD_PRIVATE), fedprox(RATE, 0.0, HEAD), HEAD)


def test_private_then_public_is_fedrep():
    study = study_of(private=HEAD_PRIVATE, phases="private:2,public:1")
    simulation = assert_by_the_book(study, fedrep(RATE, HEAD, 2 / 3), HEAD, passes=3)
    together, _ = by_the_book(study, fedrep(RATE, HEAD, 1 / 3), HEAD, passes=3)
    assert np.abs(together["fc1.weight"] - simulation.server.tensors["fc1.weight"]).max() > 1e-3


def test_public_alone_is_the_body_of_fedbabu():
    study = study_of(private=HEAD_PRIVATE, phases="public:2")
    simulation = assert_by_the_book(study, fedrep(RATE, HEAD, 0.0), HEAD, passes=2)
    initial = initial_tensors(UNEVEN, study.seed)
    for client in range(study.clients):
        assert_close(simulation.patches.of(client), {name: initial[name] for name in HEAD}, 0.0)


def accuracy_of(values: Values, client: int) -> float:
    model, data = build_model(), client_data(client, study_of().seed)
    load(model, values)
    with torch.no_grad():
        chosen = model.eval()(torch.tensor(data.test_x)).argmax(1).numpy()
    return float((chosen == data.test_y).mean())


@pytest.mark.parametrize(
    ("terms", "head"),
    [({"private": HEAD_PRIVATE, "phases": "public:1", "finish": "private:2"}, HEAD), ({"finish": "all:2"}, ())],
    ids=["fedbabu", "fine-tuning"],
)
def test_finish_is_the_training_after_the_rounds_of_fedbabu(terms, head):
    """All clients finish the last model, also clients that never took part; model and patches stay as without `finish`."""
    study = study_of(**terms)
    simulation, deployed = played(study), Deployed(study)
    w, clients = by_the_book(study, fedrep(RATE, head, 0.0), head)
    assert_close(simulation.server.tensors, w)
    for _ in range(ROUNDS):
        deployed.play()
    assert any(not one.batches_done for one in clients.values())
    accuracies, initial = simulation.user_accuracies(), initial_tensors(UNEVEN, study.seed)
    tuned = [name for name, _ in build_model().named_parameters() if not head or name in head]
    for number in range(study.clients):
        x, y, *_ = arrays_of(client_data(number, study.seed))
        steps = max(1, round(len(x) / BATCH)) * 2
        data = [(x[b], y[b]) for b in batches(len(x), BATCH, 0, steps, stream_seed(study.seed, client_id(number)))]
        begun = w | {name: initial[name] for name in head}
        finished = fine_tune(RATE, tuned)(build_model(), begun, clients[client_id(number)], data)
        assert_close(deployed.finished(number).tensors, finished)
        assert accuracies[number] == pytest.approx(accuracy_of(finished, number))
        assert_close(
            {name: simulation.patches.of(number)[name] for name in head}, {name: initial[name] for name in head}, 0.0
        )


def test_personal_copy_is_dittos():
    """The federated model is that of FedAvg; a client that never took part has no copy."""
    study = study_of(personal="ditto:0.5")
    (w, clients), simulation = by_the_book(study, ditto(RATE, 0.5)), played(study)
    assert_close(simulation.server.tensors, w)
    assert_close(simulation.server.tensors, played(study_of()).server.tensors)
    taken = [one for one in range(study.clients) if clients[client_id(one)].batches_done]
    assert 0 < len(taken) < study.clients
    for client in range(study.clients):
        copy = copy_in(simulation.patches.of(client))
        assert_close(copy, clients[client_id(client)].w["v"] if client in taken else {})
    _, freer = by_the_book(study, ditto(RATE, 0.1))
    held, free = (known[client_id(taken[0])].w["v"]["fc1.weight"] for known in (clients, freer))
    assert np.abs(held - free).max() > 1e-3


def test_personal_copy_is_theta_of_pfedme():
    study = study_of(personal="pfedme:2")
    (w, clients), simulation = by_the_book(study, pfedme(RATE, 2.0)), played(study)
    assert_close(simulation.server.tensors, w)
    for client in range(study.clients):
        assert_close(copy_in(simulation.patches.of(client)), clients[client_id(client)].w.get("v", {}))


def test_simulation_of_pfedme_is_the_deployed_system():
    assert_like_deployed(study_of(private="affine", personal="pfedme:2"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"personal": "pfedme:6"}, "above 1"), ({"personal": "pfedme:1", "strategy": "fedavg-adam"}, "defined for SGD")],
)
def test_pfedme_that_cannot_follow_is_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        simulation_of(study_of(**changes))


@pytest.mark.parametrize(
    "terms",
    [
        {"phases": "private:1,public:2s,all"},
        {"personal": "ditto:0.1", "prox": 0.1},
        {"phases": "public:1", "finish": "private:2,all:3s"},
    ],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-adam"])
def test_simulation_is_the_deployed_system(strategy, terms):
    assert_like_deployed(study_of(strategy, "affine", **terms))


def test_simulation_of_convolutions_is_the_deployed_system():
    assert_like_deployed(study_of(private="affine", prox=0.1), IMAGES)


def test_study_goes_on_where_it_stopped(tmp_path):
    study = study_of(private="affine", prox=0.1, personal="ditto:0.1", rounds=3)
    whole = without_seconds(play_on(study, tmp_path / "whole", 4))
    play_on(study, tmp_path / "cut", 2)
    assert without_seconds(play_on(study, tmp_path / "cut", 4)) == whole
    assert Study.from_dict(study.to_dict()) == study


def test_study_with_finish_goes_on_where_it_stopped(tmp_path):
    study = study_of(private="affine", phases="public:1", finish="private:1", rounds=3)
    whole = without_seconds(play_on(study, tmp_path / "whole", 4))
    play_on(study, tmp_path / "cut", 2)
    assert without_seconds(play_on(study, tmp_path / "cut", 4)) == whole


def test_finish_that_trains_nothing_is_refused():
    with pytest.raises(UsageError, match="phase private has nothing to train; leave it out of finish"):
        simulation_of(study_of(private="stats", finish="private:1"))


def test_phase_that_trains_nothing_is_refused():
    with pytest.raises(UsageError, match="phase private has nothing to train; leave it out"):
        simulation_of(study_of(private="stats", phases="private:1,public:1"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"phases": "private:1", "private": "affine"}, "--phases: private:1 trains nothing that travels; add public"),
        ({"phases": "private:1,public:1"}, "nothing to train with private = none; set private to head"),
        ({"prox": 0.1, "personal": "pfedme:1"}, "leave prox out"),
        ({"finish": "private:1"}, "set private to head or names:GLOB,..., or finish to all:N"),
        ({"finish": "all:1", "personal": "ditto:1"}, "leave finish or personal out"),
        ({"phases": "public:1", "personal": "ditto:1"}, "leave phases or personal out"),
        ({"phases": "public:1", "epochs": 2}, "has epochs and steps of its own; leave epochs and steps out"),
        ({"prox": -1.0}, "--prox: -1 is not from 0"),
        ({"prox": 0.1, "strategy": "per-fedavg"}, "--prox: per-fedavg trains in its own way; choose one of"),
    ],
)
def test_terms_that_do_not_fit_a_study_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        make_study(task=UNEVEN, task_ref=REFERENCE, clients=3, **{"strategy": "fedavg", "learning_rate": 0.1, **given})


def test_terms_are_not_computed_on_a_gpu():
    with pytest.raises(UsageError, match="--prox: computed on the CPU only; use --device cpu"):
        simulate(study_of(prox=0.1), device="cuda")
