"""Rounds between this version and an earlier one from the repository's history, as in a half upgraded fleet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.system.commands import Command, run
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(900)]

# The oldest version whose runs and states go on.
EARLIER = "4bc2ab65"
DEVICES = ["ann", "bob"]
ROUNDS = 4


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Path:
    """The folder with the code of an earlier version, to import from."""
    unneeded = [f":(exclude){folder}" for folder in ("ansible", "benchmarks", "docs", "results", "tests")]
    command = ["git", "-C", str(ROOT), "archive", EARLIER, ".", *unneeded]
    ran = subprocess.run(command, capture_output=True, check=False)
    if ran.returncode != 0:
        pytest.skip(f"no {EARLIER} in this repository's history: {ran.stderr.decode().strip()}")
    folder = Path(tmp_path_factory.mktemp("before"))
    with tarfile.open(fileobj=BytesIO(ran.stdout)) as archive:
        archive.extractall(folder, filter="data")
    code = folder / "src"
    # An installation of the present version must not take precedence.
    command = [sys.executable, "-c", "import fedpatch.device_agent; print(fedpatch.device_agent.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    assert Path(ran.stdout.decode()).is_relative_to(folder)
    return code


def _start(fleet: Fleet, code: Path, monkeypatch: pytest.MonkeyPatch, devices: Sequence[str] = DEVICES) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        for device in devices:
            fleet.start(device, "digits", f"shard:{DEVICES.index(device)}/10")


def _settings(fleet: Fleet, state_dir: Path) -> list[object]:
    named = {"broker": fleet.broker, "fleet": fleet.name, "state-dir": state_dir, "task": "digits", "rounds": ROUNDS}
    named |= {"devices": len(DEVICES), "recruit-deadline-s": 100, "deadline-s": 300, "quorum": 1, "wait-s": 150}
    return [word for name, value in named.items() for word in (f"--{name}", value)]


def _trained(document: dict[str, Any]) -> list[tuple[str, int]]:
    return [(one["outcome"], one["reported"]) for one in document["rounds"]]


@pytest.mark.parametrize("upgraded", ["the coordinator", pytest.param("the devices", marks=pytest.mark.slow)])
def test_a_round_is_played_by_two_versions(before, mosquitto, tmp_path, monkeypatch, upgraded):
    code = {True: ROOT / "src", False: before}
    with Fleet(mosquitto.url, tmp_path, forked=False) as fleet:
        _start(fleet, code[upgraded == "the devices"], monkeypatch)
        fleet.wait_ready()
        coordinator = {"PYTHONPATH": str(code[upgraded == "the coordinator"])}
        done = run("fedpatch", "run", "--json", *_settings(fleet, tmp_path / "state"), environment=coordinator)
    assert done.code == 0, done.err
    assert _trained(done.document) == [("aggregated", len(DEVICES))] * ROUNDS


@pytest.mark.slow
def test_an_upgrade_in_the_middle_of_a_run_goes_on_with_it(before, mosquitto, tmp_path, monkeypatch):
    """In the order of upgrade.yml: a device, the coordinator, the other device; each continues from its former state."""
    state_dir = tmp_path / "state"
    with Fleet(mosquitto.url, tmp_path, forked=False) as fleet:
        _start(fleet, before, monkeypatch)
        fleet.wait_ready()
        settings = [*_settings(fleet, state_dir), "--round-interval-s", 5]
        with Command("fedpatch", "run", *settings, environment={"PYTHONPATH": str(before)}) as coordinator:
            coordinator.wait_err(f"round 1/{ROUNDS}")
            fleet.agents["ann"].terminate()
            _start(fleet, ROOT / "src", monkeypatch, ["ann"])
            fleet.wait_ready()
            assert coordinator.terminate().code in (0, 130)
        with Command(
            "fedpatch", "run", "--json", *settings, environment={"PYTHONPATH": str(ROOT / "src")}
        ) as coordinator:
            coordinator.wait_err("going on")
            fleet.agents["bob"].terminate()
            _start(fleet, ROOT / "src", monkeypatch, ["bob"])
            done = coordinator.done()
        assert done.code == 0, done.err
        assert done.document["rounds"][-1]["reported"] == len(DEVICES)
        listed = json.loads(run("fedpatch", "runs", "--json", "--state-dir", state_dir).out)
        assert [one["stopped_because"] for one in listed] == ["max_rounds"]
