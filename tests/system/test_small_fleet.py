"""Small fleets with default settings over a real broker: a bad device does not end a run; a run without success ends with 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.tensors.patches import parse_policy
from tests.support.brokers import Mosquitto, client
from tests.system.commands import Command, run
from tests.system.fleet import Fleet
from tests.system.misdeeds import MISDEEDS, SCHEMA
from tests.system.oracle_task import REFERENCE, TASK
from tests.system.rogue import Rogue

pytestmark = [pytest.mark.system, pytest.mark.broker]

ROUNDS = 5
HONEST = {f"pi-{index}": f"n={30 + index},test=30,seed={index}" for index in range(3)}
TRAVELLING = parse_policy("affine").public(SCHEMA).with_moments(MOMENTS)


def where(broker: Mosquitto, state_dir: Path) -> list[object]:
    """Return the options of a run for its broker, fleet and files."""
    return ["--broker", broker.url, "--fleet", "small", "--state-dir", state_dir, "--metrics", "none"]


def test_one_bad_device_of_four_does_not_end_the_run(tmp_path):
    with Mosquitto() as broker, Fleet(broker.url, tmp_path, name="small") as fleet, client(broker.url, "foe") as voice:
        for device, data in HONEST.items():
            fleet.start(device, REFERENCE, data)
        fleet.wait_ready()
        rogue = Rogue(voice, "small", "foe", TASK.name, SCHEMA, TRAVELLING)
        rogue.appear()
        terms = ["--task", REFERENCE, "--devices", 4, "--rounds", ROUNDS, "--wait-s", 150, "--json"]
        with Command("fedpatch", "run", *where(broker, tmp_path / "state"), *terms) as coordinator:
            rogue.play([MISDEEDS["no examples"][1]])
            done = coordinator.done()
    assert done.code == 0, done.err
    assert "foe refused: out_of_range" in done.err
    assert "it is not asked again in this run" in done.err
    rounds = done.document["rounds"]
    assert [(one["outcome"], one["reported"]) for one in rounds] == [("aggregated", 3)] * ROUNDS
    assert [(one["cohort"], one["needed"]) for one in rounds] == [(4, 3)] + [(3, 3)] * (ROUNDS - 1)
    assert rounds[0]["offenders"] == {"foe": "out_of_range"}


def test_run_without_any_device_ends_with_1_and_the_reason(tmp_path):
    with Mosquitto() as broker:
        terms = ["--task", REFERENCE, "--devices", 2, "--time-limit-s", 0.5]
        done = run("fedpatch", "run", *where(broker, tmp_path / "state"), *terms)
        assert done.code == 1
        assert "no round began: 0 of 2 devices came" in done.err
        again = run("fedpatch", "show", "last", "--state-dir", tmp_path / "state")
        assert again.code == 0, again.err


def test_run_of_failed_rounds_ends_with_1_and_the_reason(tmp_path):
    with Mosquitto() as broker, client(broker.url, "foe") as voice:
        rogue = Rogue(voice, "small", "foe", TASK.name, SCHEMA, TRAVELLING)
        rogue.appear()
        terms = ["--task", REFERENCE, "--devices", 1, "--rounds", 1, "--wait-s", 100]
        with Command("fedpatch", "run", *where(broker, tmp_path / "state"), *terms) as coordinator:
            rogue.play([MISDEEDS["no examples"][1]])
            done = coordinator.done()
    assert done.code == 1
    assert "no round succeeded, so the model is unchanged" in done.err
    assert "all rounds done after 1 round, none of which succeeded" in done.out
