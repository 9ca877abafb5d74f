"""The command `fedpatch privacy plan`."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from fedpatch.coordinator.cli.main import NAME, app
from fedpatch.coordinator.runtime.privacy_outlook import privacy_outlook
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.command import run_app
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from tests.support.identities import Certified
from tests.support.programs import Program


@pytest.fixture
def plan(monkeypatch, capsys):
    program = Program(lambda: run_app(app, NAME), monkeypatch, capsys)

    def called(devices: int, parameters: int, *more: str):
        words = ("--devices", str(devices), "--parameters", str(parameters), "--rounds", "7", "--epsilon", "8", *more)
        return program("privacy", "plan", *words)

    return called


def test_plan_that_learns_prints_the_noise_and_ends_with_0(plan):
    ended = plan(1000, 1000)
    assert ended.code == 0
    assert "noise multiplier 1.588" in ended.out and "will learn" in ended.out


def test_plan_of_the_2nn_at_ten_devices_ends_with_1_and_names_remedies(plan):
    ended = plan(10, 199_210)
    assert ended.code == 1
    assert "71 times the clip: little or nothing will be learnt; it takes 1,418 devices" in ended.out


def test_plan_in_json_has_the_promised_keys(plan):
    ended = plan(200, 1000, "--json")
    assert json.loads(ended.out).keys() == {
        "devices",
        "parameters",
        "rounds",
        "epsilon",
        "delta",
        "noise_multiplier",
        "ratio",
        "dp",
        "verdict",
        "least_devices",
        "most_parameters",
    }


def test_plan_without_devices_ends_with_2(plan):
    ended = plan(0, 1000)
    assert (ended.code, "--devices" in ended.err) == (2, True)


@pytest.mark.parametrize(("devices", "delta", "fitting"), [(200, "0.005", "5e-04"), (1_000_000, "1e-05", "1e-07")])
def test_plan_with_a_delta_that_a_run_refuses_ends_with_2_and_names_a_fitting_one(plan, devices, delta, fitting):
    ended = plan(devices, 1000, "--delta", delta)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith(f"published whole; make it less than 1 / devices, e.g. {fitting}\n")
    assert plan(devices, 1000, "--delta", fitting).code == 0


def test_plan_with_noise_of_the_devices_has_more_noise_than_central(plan):
    central, masked = (json.loads(plan(400, 1000, "--json", *more).out) for more in ((), ("--dp", "distributed")))
    assert (central["dp"], masked["dp"]) == ("central", "distributed")
    assert 1.05 < masked["noise_multiplier"] / central["noise_multiplier"] < 1.08
    assert 4 < masked["ratio"] / central["ratio"] < 6
    better = ("--dp", "distributed", "--group-size", "64", "--threshold", "two_thirds")
    assert json.loads(plan(400, 1000, "--json", *better).out)["ratio"] < masked["ratio"]


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (("--dp", "off"), "--dp"),
        (("--dp", "distributed", "--group-size", "7"), "--group-size"),
        (("--dp", "distributed", "--threshold", "all"), "--threshold"),
        (("--dp", "distributed", "--colluders", "9"), "--colluders: 9 is not from 0 to 8"),
        (("--dp", "distributed", "--colluders", "-1"), "--colluders"),
    ],
)
def test_plan_with_a_wrong_word_names_its_option(plan, more, name):
    ended = plan(100, 1000, *more)
    assert (ended.code, name in ended.err) == (2, True)


def test_noise_that_colluders_may_tell_is_in_the_ratio_of_the_plan_and_of_the_run(plan, prepared, tmp_path):
    """Each of 22 - 11 devices of 32 adds 1 / 11 of the variance in place of 1 / 22."""
    flags = {"secure": "groups", "strategy": "fedavg", "private": "all", "dp": "distributed", "dp_clip": 1.0}
    ca_file = shutil.copy(Certified(tmp_path / "elsewhere" / "ca", "demo").make().ca_file, tmp_path)
    flags |= {
        "devices": 320,
        "rounds": 7,
        "noise_multiplier": 2.0,
        "min_group": 32,
        "ca_file": Path(ca_file),
        "broker": "mqtts://here",
    }
    found = []
    for colluders in (0, 11):
        planned = plan(320, 1000, "--dp", "distributed", "--colluders", str(colluders), "--json")
        settings = load(RunSettings, file=None, environ={}, flags={**flags, "colluders": colluders})
        [of_run] = re.findall(r"is ([\d.]+) times the clip", privacy_outlook(settings, prepared))
        found.append((json.loads(planned.out)["ratio"], float(of_run)))
    (planned, of_run), more = found
    assert more == pytest.approx((planned * math.sqrt(2), of_run * math.sqrt(2)), rel=0.05)


def test_plan_of_fewer_devices_than_a_masked_group_names_devices(plan):
    assert "--devices" in plan(7, 1000, "--dp", "distributed").err


@pytest.mark.parametrize(("group_size", "min_group"), [(32, 8), (64, 8), (32, 32)])
@pytest.mark.parametrize("devices", [8, 200])
@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 20), (5, 20)])
def test_run_with_the_planned_noise_keeps_the_planned_epsilon(plan, devices, rounds, epsilon, group_size, min_group):
    """A run has one grid for all its rounds, whose groups may be larger than those of the planned devices."""
    terms = ("--dp", "distributed", "--rounds", str(rounds), "--epsilon", str(epsilon))
    noise = json.loads(plan(devices, 1000, *terms, "--group-size", str(group_size), "--json").out)["noise_multiplier"]
    settings = {
        "secure": "groups",
        "threshold": "half",
        "dp": "distributed",
        "dp_clip": 1.0,
        "group_size": group_size,
        "min_group": min_group,
        "rounds": rounds,
    }
    flags = {**settings, "noise_multiplier": noise, "max_epsilon": float(epsilon)}
    assert load(RunSettings, file=None, environ={}, flags=flags).noise_multiplier == noise


@pytest.mark.parametrize(
    "terms",
    [
        {"dp": "central"},
        {"dp": "distributed", "secure": "groups", "threshold": "half"},
        {"dp": "central", "delta": 1e-7},
    ],
)
def test_plan_that_the_refusal_of_a_run_names_computes_noise_that_the_run_accepts(plan, terms):
    flags = {**terms, "strategy": "fedavg", "dp_clip": 1.0, "rounds": 50, "max_epsilon": 8.0}
    with pytest.raises(ConfigError) as refused:
        load(RunSettings, file=None, environ={}, flags={**flags, "noise_multiplier": 1.0})
    [named] = re.findall(r"`fedpatch privacy plan (.*)`", str(refused.value))
    noise = json.loads(plan(200, 1000, *named.split(), "--json").out)["noise_multiplier"]
    assert load(RunSettings, file=None, environ={}, flags={**flags, "noise_multiplier": noise}).dp == terms["dp"]
