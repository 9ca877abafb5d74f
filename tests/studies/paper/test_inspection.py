"""Measurements inside a round equal those of a device, and do not change the simulation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.torch_model import load_tensors
from fedpatch.simulator.experiment.simulation import Simulation
from fedpatch.simulator.learners.cohort_training import InProcess
from fedpatch.simulator.spec.study import Study
from studies.paper import inspection
from studies.paper.instrumented_learner import WatchedLearner
from studies.paper.results import measurements
from tests.simulator.studies import (
    SIZES,
    UNEVEN,
    Deployed,
    assert_close,
    build_model,
    client_data,
    patch_of,
    population_of,
    simulation_of,
    study_of,
)

Seen = dict[tuple[int, int], tuple[float, float]]
"""Training and test accuracy by client and step."""


def watched(study: Study, seen: Seen | None = None, sample: int = 50) -> tuple[Simulation, WatchedLearner]:
    """A simulation that writes the measured accuracies into `seen`."""
    learners: list[WatchedLearner] = []

    def at_step(client: int, done: int, train: float, test: float) -> None:
        assert seen is not None
        seen[client, done] = train, test

    def cohort(task, context):
        learners.append(WatchedLearner(task, context, at_step=None if seen is None else at_step, sample=sample))
        return InProcess(learners[0])

    return Simulation(study, UNEVEN, population_of(study, UNEVEN), cohort), learners[0]


@pytest.mark.parametrize("strategy", ["fedavg", "fedavg-adam", "independent"])
def test_watching_changes_nothing(strategy):
    private = "none" if strategy == "independent" else "all"
    study = study_of(strategy, private)
    (looked_at, _), alone = watched(study, {}), simulation_of(study)
    for _ in range(3):
        assert replace(looked_at.step(), seconds=0.0) == replace(alone.step(), seconds=0.0)
    assert_close(looked_at.server.tensors, alone.server.tensors, 0)
    for client in range(study.clients):
        assert_close(patch_of(looked_at, client), patch_of(alone, client), 0)


def test_every_step_is_seen_from_aggregation_to_the_last():
    """The first value is user accuracy, the last is the device's report after training; there is one value more than steps."""
    study, seen = study_of("fedavg", "all", participation=1.0, steps=4), Seen()
    simulation, _ = watched(study, seen)
    deployed = Deployed(study)
    point = simulation.step()
    simulation.step()
    assert set(seen) == {(client, step) for client in range(study.clients) for step in range(5)}
    assert np.mean([seen[client, 0][1] for client in range(study.clients)]) == pytest.approx(point.user_accuracy)
    deployed.play()
    for client in range(study.clients):
        assert seen[client, 4][1] == pytest.approx(deployed.accuracies_after[client])


def test_training_accuracy_is_that_of_a_sample():
    study, seen = study_of(participation=1.0), Seen()
    simulation, _ = watched(study, seen)
    simulation.step(), simulation.step()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(study.seed)
        model = build_model().eval()
    for client, size in enumerate(SIZES):
        assert size <= 50
        data = client_data(client, study.seed)
        expected = UNEVEN.metric(model(torch.from_numpy(data.train_x)), torch.from_numpy(data.train_y))
        assert seen[client, 0][0] == pytest.approx(expected)


def test_outputs_of_batch_norm_are_those_of_the_clients_own_model():
    study = study_of("fedavg", "all", clients=1, participation=1.0)
    simulation, learner = watched(study)
    simulation.step(), simulation.step()
    model = build_model().eval()
    load_tensors(
        model, {**simulation.server.tensors, **patch_of(simulation, 0)}
    )  # with one client, the mean is its model
    with torch.no_grad():
        outputs = torch.nn.Sequential(*list(model.children())[:3])(torch.from_numpy(client_data(0, study.seed).test_x))
    for mean, variance in (learner.after_training[0]["bn"], learner.after_aggregation(0)["bn"]):
        torch.testing.assert_close(mean, outputs.mean(0))
        torch.testing.assert_close(variance, outputs.var(0, correction=0))


def test_the_average_takes_the_place_of_a_patch_only_to_be_looked_at():
    simulation, learner = watched(study_of("fedavg", "all", participation=1.0))
    simulation.step(), simulation.step()
    before, patch = learner.after_aggregation(0), patch_of(simulation, 0)
    average = inspection._average(simulation, learner)
    blocks = simulation.patches.values
    expected = sum(size * blocks["bn.weight"][client] for client, size in enumerate(SIZES)) / sum(SIZES)
    torch.testing.assert_close(average["bn.weight"], expected)
    mean, _ = learner.after_aggregation(0, average)["bn"]
    assert not torch.allclose(mean, before["bn"][0])
    torch.testing.assert_close(learner.after_aggregation(0)["bn"], before["bn"])
    assert_close(patch_of(simulation, 0), patch, 0)


def test_a_model_that_is_no_plain_sequence_cannot_be_watched():
    study = study_of()
    task = replace(UNEVEN, build_model=lambda: torch.nn.Linear(12, 3).double())
    with pytest.raises(UsageError, match=r"'uneven'.*plain sequence"):
        Simulation(
            study,
            task,
            population_of(study, task),
            lambda task, context: InProcess(WatchedLearner(task, context, at_step=None, sample=1)),
        )


def small(task: str, private: str, seed: int, rounds: int, steps: int = 0) -> Study:
    """Replaces the paper's studies: few clients, each with the same number of steps."""
    return study_of("fedavg", private, seed=seed, rounds=rounds, steps=steps or 15, participation=1.0)


@pytest.fixture
def printed(monkeypatch):
    """Small studies, and their progress lines."""
    monkeypatch.setattr(inspection, "_study", small)
    return []


def test_figure_4_has_two_curves_for_each_kind_of_patch(printed, tmp_path):
    measured = inspection.run_fig4(tmp_path, 3, rounds=2, on_progress=printed.append)
    assert list(measured["policies"]) == ["none", "stats", "affine", "all"]
    for curves in measured["policies"].values():
        for part in ("train", "test"):
            assert len(curves[part]) == 2 * 11
            assert all(0 <= one <= 1 for one in curves[part])
    assert json.loads((tmp_path / "fig4.jsonl").read_bytes()) == measured


def test_private_statistics_do_not_change_what_happens_in_training(printed, tmp_path):
    """Batch norm trains by its batch: with private statistics and without, the final losses agree (paper, section 4.3)."""
    losses = []
    for private in ("none", "stats"):
        simulation = simulation_of(small("", private, 3, 2))
        losses.append([simulation.step().train_loss for _ in range(3)][1:])
    assert losses[0] == pytest.approx(losses[1])


def test_existing_measurement_is_not_repeated(printed, tmp_path, monkeypatch):
    first = inspection.run_fig4(tmp_path, 3, rounds=1, on_progress=printed.append)
    del first["policies"]["all"]
    measurements(tmp_path, "fig4").put(first)
    asked: list[str] = []

    def noted(task: str, private: str, seed: int, rounds: int, steps: int = 0) -> Study:
        asked.append(private)
        return small(task, private, seed, rounds, steps)

    monkeypatch.setattr(inspection, "_study", noted)
    inspection.run_fig4(tmp_path, 3, rounds=1, on_progress=printed.append)
    assert asked == ["all"]


@pytest.mark.parametrize("run", [inspection.run_fig3, inspection.run_fig4])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            '{"seed": 3, "steps_per_round": %d, "rounds": 60}',
            "measured with rounds 60, which now is 2; give --rounds 60, or delete the line",
        ),
        (
            '{"seed": 3, "steps_per_round": 7, "rounds": 2}',
            "measured with steps_per_round 7, which now is .*; delete the line",
        ),
        ("{", "line 1 is damaged .*; delete the line"),
        ("[]", "line 1 is damaged .*; delete the line"),
    ],
)
def test_a_measurement_of_other_terms_or_a_damaged_one_is_refused_and_kept(printed, tmp_path, run, content, complaint):
    figure = run.__name__.removeprefix("run_")
    path = tmp_path / f"{figure}.jsonl"
    path.write_text(content.replace("%d", str(inspection.FIG3_STEPS if figure == "fig3" else inspection.FIG4_STEPS)))
    before = path.read_bytes()
    with pytest.raises(UsageError, match=complaint):
        run(tmp_path, 3, rounds=2, on_progress=printed.append)
    assert path.read_bytes() == before


def test_a_measurement_names_its_command_commit_and_processor(printed, tmp_path):
    origin = {"command": "python -m studies.paper fig4", "commit": "0c32035a", "processor": "AMD EPYC"}
    inspection.run_fig4(tmp_path, 3, rounds=1, on_progress=printed.append, origin=origin)
    kept = json.loads((tmp_path / "fig4.jsonl").read_bytes())
    assert {name: kept[name] for name in origin} == origin
    assert set(kept["versions"]) >= {"python", "torch"}


def test_figure_3_has_three_curves_and_both_sides_of_equation_10(printed, tmp_path):
    measured = inspection.run_fig3(tmp_path, 3, rounds=2, on_progress=printed.append)
    assert [len(measured[key]) for key in ("ind", "fl", "mtfl")] == [2 * 16] * 3
    entries = measured["layers"]
    assert [(one["layer"], one["round"]) for one in entries] == [
        ("MNIST bn", 1),
        ("MNIST bn", 2),
        ("CIFAR10 bn", 1),
        ("CIFAR10 bn", 2),
    ]
    for one in entries:
        assert one["mean_shift_private"] >= 0
        assert one["var_shift_federated"] >= 0
        assert 0 <= one["share_holding_mean"] <= 1
    assert any("round 2/2" in line for line in printed)


def test_one_client_moves_nothing_by_aggregation(printed):
    """If the mean is the client's own model, both sides of Eq. (10) are zero."""
    entries = inspection._shifts(replace(small("", "all", 3, 1), clients=1), "", printed.append)
    for one in entries:
        assert (one["mean_shift_private"], one["mean_shift_federated"]) == (0, 0)
        assert (one["var_shift_private"], one["var_shift_federated"]) == (0, 0)
