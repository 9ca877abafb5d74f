"""Simulations with the bounds of a run: the coordinator's own code applies them, with every engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation
from fedpatch.simulator.spec.study import Study
from tests.simulator.studies import (
    STRATEGIES,
    UNEVEN,
    Deployed,
    assert_close,
    one_process,
    population_of,
    simulation_of,
    study_of,
)

TIGHT = "auto:0.8"


@pytest.mark.parametrize(("bound", "expected"), [("off", 0), ("auto:2", 3)])
def test_simulation_with_changed_updates_folds_what_was_made_of_them(bound, expected):
    """One client makes its step a thousand times as long: it is bounded in each of three rounds, or never."""
    study, task = study_of("fedavg", "affine", participation=1.0, norm_bound=bound), UNEVEN
    seen: list[int] = []

    def change(updates):
        seen.extend(updates.clients)
        update, base = updates.read(1), updates.base
        updates.write(1, {name: base[name] + 1000 * (update[name] - base[name]) for name in update})

    simulation = Simulation(study, task, population_of(study, task), one_process, change)
    for _ in range(4):
        simulation.step()
    simulation.close()
    assert sorted(seen) == sorted(3 * list(range(study.clients)))
    assert simulation.clipped == expected


def test_simulation_whose_updates_are_changed_to_themselves_is_the_same_to_the_last_digits():
    study = study_of("fedavg", "affine", participation=1.0)
    plain = simulation_of(study)
    apart = Simulation(study, UNEVEN, population_of(study, UNEVEN), one_process, lambda updates: None)
    for _ in range(3):
        plain.step()
        apart.step()
    apart.close()
    assert_close(apart.server.tensors, plain.server.tensors)


@pytest.mark.parametrize("encoding", ["fp32", "fp16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bounded_rounds_equal_those_of_the_coordinator(strategy, encoding):
    study = study_of(strategy, "affine", participation=0.3, norm_bound=TIGHT, max_num_examples="auto:1.2")
    simulation, deployed = simulation_of(replace(study, encoding=encoding)), Deployed(study)
    simulation.step()
    for _ in range(3):
        deployed.play()
        simulation.step()
    assert deployed.clipped
    if encoding == "fp32":
        assert_close(simulation.server.tensors, deployed.state.tensors)
        assert simulation.server.references.keys() == deployed.state.references.keys()
    simulation.close()


def test_study_with_and_without_bounds_survives_its_json():
    plain, bounded = study_of(), study_of(norm_bound=TIGHT, max_num_examples="auto:2")
    assert not {"norm_bound", "max_num_examples"} & plain.to_dict().keys()
    assert Study.from_dict(plain.to_dict()) == plain
    assert Study.from_dict(bounded.to_dict()) == bounded


@pytest.mark.parametrize("terms", [{"norm_bound": "auto"}, {"max_num_examples": "many"}])
def test_unknown_forms_of_bounds_are_refused(terms):
    with pytest.raises(UsageError, match="write off"):
        make_study(task=find_task("digits"), task_ref="digits", clients=2, strategy="fedavg", **terms)
