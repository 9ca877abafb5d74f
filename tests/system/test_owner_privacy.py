"""The owner decides what is private: a coordinator that requests a weaker policy gets no update, over a real broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import MOMENTS, Array
from fedpatch.shared.tensors.patches import parse_policy
from tests.support.brokers import Mosquitto
from tests.system.commands import run as command
from tests.system.fleet import AgentProcess, Fleet
from tests.system.oracle_task import REFERENCE, TASK, build_model
from tests.system.recording import Haystack, Recorder
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker]

DEVICES = {"ann": "n=37,test=30,seed=1", "bob": "n=24,test=30,seed=2"}
SCHEMA = schema_of(build_model())
BATCH_NORM = parse_policy("all").private_names(SCHEMA.with_moments(MOMENTS))


@dataclass
class Scene:
    """Two agents with default settings, which have taken part in rounds with `affine`."""

    broker: Mosquitto
    fleet: Fleet


class RunLines(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Mosquitto("max_queued_messages 0") as broker, Fleet(broker.url, tmp_path / "fleet") as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, REFERENCE, data)
        fleet.wait_ready()
        scene = Scene(broker, fleet)
        summary, _ = play(scene, tmp_path / "learning", "affine")
        assert [record.reported for record in summary.rounds] == [2, 2]
        yield scene


def play(scene: Scene, state_dir: Path, private: str, **changes: Any) -> tuple[RunSummary, RunLines]:
    """Run with a new coordinator and a strategy that sends moments; return the summary and the output."""
    terms = {"rounds": 2, "quorum": 1.0, "strategy": "fedavg-adam", "private": private, "encoding": "fp32", **changes}
    settings = scene.fleet.settings(state_dir, REFERENCE, **terms)
    view = RunLines()
    return start_run(settings, view), view


def recorded(scene: Scene, folder: Path, private: str, **changes: Any) -> tuple[RunSummary, RunLines, Recorder]:
    """Run like `play`, and record every message on the broker meanwhile."""
    folder.mkdir()
    with Recorder(scene.broker.port, folder) as recorder:
        summary, view = play(scene, folder / "state", private, **changes)
    return summary, view, recorder


def patch(agent: AgentProcess, folder: Path) -> dict[str, Array]:
    """Return the patch that the device learned in the rounds with `affine`."""
    shutil.copytree(agent.patches, folder)
    key = PatchKey(TASK.name, SCHEMA.digest, "affine")
    return dict(PatchStore(folder).load(key, "another run", 0).values)


def assert_declined(summary: RunSummary, view: RunLines, recorder: Recorder, word: str) -> None:
    """Check that both devices declined with `word`, the run reports it with a remedy, and no byte of an update was sent."""
    assert summary.stopped_because == Stopped.FAILED
    assert [record.decline_reasons for record in summary.rounds] == [{word: 2}]
    assert f"2 declined with {word}: " in view.text
    assert not [topic for topic, _ in recorder.messages if "/dev/" in topic and "/blob/" in topic]


def test_no_run_gets_gamma_beta_or_their_moments_after_rounds_that_kept_them(scene, tmp_path):
    """Requests with `none`, another tensor's name, or `stats` after a restart are declined; runs with `affine` continue."""
    kept = {device: patch(agent, tmp_path / device) for device, agent in scene.fleet.agents.items()}
    assert all("bn1.weight:exp_avg" in values for values in kept.values())
    for number, private in enumerate(("none", "names:fc3.bias", "stats")):
        if number == 2:
            for agent in scene.fleet.agents.values():
                agent.restart()
            scene.fleet.wait_ready()
        summary, view, recorder = recorded(scene, tmp_path / f"attack-{number}", private, wait_s=15.0)
        assert_declined(summary, view, recorder, "private_policy")
        assert all(Haystack(recorder.messages).values_of(values) == set() for values in kept.values())
        assert f"ann declined: private_policy the request keeps {private} private" in view.text
    summary, _, recorder = recorded(scene, tmp_path / "again", "names:*bn*.weight,*bn*.bias")
    assert [record.reported for record in summary.rounds] == [2, 2]
    haystack = Haystack(recorder.messages)
    stays = parse_policy("affine").private_names(SCHEMA.with_moments(MOMENTS))
    for device, agent in scene.fleet.agents.items():
        assert haystack.values_of(patch(agent, tmp_path / f"{device}-again")) == set()
    assert haystack.names_of(stays) == set()
    assert haystack.names_of(BATCH_NORM) == BATCH_NORM - stays


def test_owner_permission_is_applied_and_shown_in_status(scene, tmp_path):
    agent = scene.fleet.agents["ann"]
    private = command("fedpatch-agent", "status", "--state-dir", agent.state_dir, "--json").document["private"]
    assert (private["least"], private["source"]) == ("affine", "default")
    assert set(private["tensors"]) == parse_policy("affine").private_names(SCHEMA)
    for device, data in DEVICES.items():
        scene.fleet.agents[device].terminate()
        scene.fleet.start(device, REFERENCE, data, options=["--private", "none"])
    scene.fleet.wait_ready()
    shown = command("fedpatch-agent", "status", "--state-dir", agent.state_dir).out
    assert "private: at least none: 0 of" in shown
    summary, _, recorder = recorded(scene, tmp_path / "open", "none")
    assert [record.reported for record in summary.rounds] == [2, 2]
    assert Haystack(recorder.messages).names_of(BATCH_NORM) == BATCH_NORM


def test_a_request_for_training_without_end_is_declined(scene, tmp_path):
    summary, lines, recorder = recorded(scene, tmp_path / "endless", "affine", steps=100_000_000, wait_s=15.0)
    assert_declined(summary, lines, recorder, "plan_limit")
    assert (
        "ann declined: plan_limit more training steps are asked for; the owner's limit is max_steps = 100000"
        in lines.text
    )
