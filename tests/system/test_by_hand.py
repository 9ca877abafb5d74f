"""A fleet of a separately started broker, agents and coordinator has the results and reports of the demo."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.shared.tasks.bundled.digits import TASK
from fedpatch.shared.tasks.torch_model import initial_tensors
from tests.shared.tasks.conftest import real_data  # noqa: F401  (a fixture)
from tests.support.brokers import Mosquitto
from tests.support.paths import ROOT
from tests.system.commands import PATIENCE_S, Command, run
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

DEVICES, ROUNDS = ("pi-01", "pi-02", "pi-03"), 3
# No round ends without a device, even on a slow machine.
PATIENT = ("--wait-s", 100, "--grace-s", 100, "--recruit-deadline-s", 100, "--quorum", 1)


@dataclass(frozen=True)
class Played:
    """The data of a run after its agents have ended too."""

    summary: dict[str, Any]
    state_dir: Path
    agent_dirs: dict[str, Path]
    agent_statuses: dict[str, Any]
    broker: str

    def ask(self, *command: object) -> Any:
        """Run a command of `fedpatch`, and return its JSON document."""
        done = run("fedpatch", *command, "--state-dir", self.state_dir, "--json")
        assert done.code == 0, done.err
        return done.document


def _run(broker: Mosquitto, state_dir: Path, *options: object) -> Command:
    return Command("fedpatch", "run", "--broker", broker.url, "--state-dir", state_dir, "--json", *options)


def _agent_json(command: str, state_dir: Path) -> Any:
    done = run("fedpatch-agent", command, "--state-dir", state_dir, "--json")
    assert done.code == 0 or (command == "status" and not done.document["running"]), done.err
    return done.document


def _status_when_idle(state_dir: Path) -> Any:
    """Wait until the agent is idle: the coordinator may end before the agent has received its last message."""
    give_up_at = time.monotonic() + PATIENCE_S
    while (status := _agent_json("status", state_dir))["state"] != "idle" and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return status


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Three agents, started as documented, and a coordinator that is started before them."""
    directory = tmp_path_factory.mktemp("by-hand")
    state_dirs = {device: directory / device for device in DEVICES}
    with Mosquitto() as broker, ExitStack() as stack:
        options = ["--task", "digits", "--devices", len(DEVICES), "--rounds", ROUNDS, *PATIENT]
        coordinator = stack.enter_context(_run(broker, directory / "coordinator", *options))
        agents = []
        for index, device in enumerate(DEVICES):
            where = ["--broker", broker.url, "--device-id", device, "--state-dir", state_dirs[device]]
            what = ["--task", "digits", "--data", f"shard:{index}/{len(DEVICES)}", "--admission", "always"]
            agents.append(stack.enter_context(Command("fedpatch-agent", "run", *where, *what)))
        done = coordinator.done()
        assert done.code == 0, done.err
        status = {device: _status_when_idle(state_dir) for device, state_dir in state_dirs.items()}
        for agent in agents:
            agent.terminate()
        yield Played(done.document, directory / "coordinator", state_dirs, status, broker.url)


def test_run_by_hand_trains_the_model(played: Played):
    summary = played.summary
    assert summary["stopped_because"] == "max_rounds"
    assert [(one["outcome"], one["reported"]) for one in summary["rounds"]] == [("aggregated", len(DEVICES))] * ROUNDS
    assert summary["rounds"][-1]["user_accuracy"] > summary["rounds"][0]["user_accuracy"] + 0.3
    initial = initial_tensors(TASK, seed=0)
    with np.load(summary["model"]) as model:
        assert not np.allclose(model["fc1.weight"], initial["fc1.weight"])


def test_runs_and_show_describe_the_run(played: Played):
    (one,) = played.ask("runs")
    assert (one["id"], one["status"], one["epoch"]) == (played.summary["run"], "finished", 1)
    assert (one["task"], one["strategy"], one["private"]) == ("digits", "fedavg-adam", "affine")
    assert one["user_accuracy"] == played.summary["user_accuracy"]
    assert played.ask("show", "last") == played.summary
    text = run("fedpatch", "show", played.summary["run"], "--state-dir", played.state_dir).out
    assert text.count("aggregated") == ROUNDS
    assert played.summary["model"] in text


def test_devices_counts_invitations_and_reports(played: Played):
    devices = played.ask("devices")
    assert [one["id"] for one in devices] == list(DEVICES)
    for one in devices:
        assert (one["fleet"], one["online"], one["tasks"]) == ("default", True, ["digits"])
        assert (one["invited"], one["accepted"], one["reported"]) == (ROUNDS, ROUNDS, ROUNDS)
        assert (one["declined"], one["failed"], one["refused"], one["lost"], one["late"]) == (0, 0, 0, 0, 0)
    assert played.ask("devices", "--fleet", "kitchen") == []


def test_agent_status_of_a_running_and_of_a_stopped_agent(played: Played):
    for device, status in played.agent_statuses.items():
        assert (status["running"], status["connected"], status["state"]) == (True, True, "idle")
        assert (status["device_id"], status["broker"]) == (device, played.broker)
        assert [task["task"] for task in status["tasks"]] == ["digits"]
        assert status["last_outcome"] == "committed"
        assert not status["update_waits"]
        later = _agent_json("status", played.agent_dirs[device])
        assert (later["running"], later["connected"], later["state"]) == (False, False, "stopped")
        assert later["patches"] == status["patches"]


def test_agent_patches_lists_files_without_values(played: Played):
    for state_dir in played.agent_dirs.values():
        (patch,) = _agent_json("patches", state_dir)
        assert (patch["task"], patch["policy"], patch["problem"]) == ("digits", "affine", "")
        assert (patch["run"], patch["round"]) == (played.summary["run"], ROUNDS)
        path = Path(patch["path"])
        assert (path.parent, path.stat().st_mode & 0o777) == (state_dir / "patches", 0o600)
        assert "bn1" not in json.dumps(patch)


def test_every_file_in_a_state_directory_is_documented(played: Played):
    """The first column of docs/reference/files.md has each file; words in capitals in its paths are placeholders."""
    page = (ROOT / "docs" / "reference" / "files.md").read_text("utf-8")
    cells = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
    paths = [re.sub(r"[A-Z]{3,}", "*", path) for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    for directory in (played.state_dir, *played.agent_dirs.values()):
        left = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
        assert {one for one in left if not any(fnmatchcase(one, path) for path in paths)} == set()


@pytest.mark.slow
@pytest.mark.real_data("mnist/train-images-idx3-ubyte.gz")
def test_two_agents_learn_from_real_mnist(mosquitto: Mosquitto, tmp_path: Path, real_data: Path):  # noqa: F811
    with Fleet(mosquitto.url, tmp_path) as fleet:
        for index in range(2):
            fleet.start(f"pi-{index}", "mnist", f"shard:{index}/100", options=["--data-root", str(real_data)])
        fleet.wait_ready()
        options = ["--fleet", fleet.name, "--task", "mnist", "--devices", 2, "--rounds", 2, *PATIENT]
        with _run(mosquitto, tmp_path / "coordinator", *options) as coordinator:
            done = coordinator.done()
    assert done.code == 0, done.err
    first, second = done.document["rounds"]
    assert (first["reported"], second["reported"]) == (2, 2)
    assert first["num_examples"] == 1200
    assert second["user_accuracy"] > first["user_accuracy"] + 0.3
