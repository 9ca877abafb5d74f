"""`fedpatch demo`: the model learns, the JSON is as documented, a repetition is exact, and no process is left."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.shared.tasks.bundled.digits import TASK
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.patches import parse_policy
from tests.system.commands import Command, Done, run

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

TARGET, MOST_ROUNDS, DEVICES = 0.97, 30, 10
SUMMARY = {"run", "stopped_because", "user_accuracy", "model", "rounds", "warnings", "independent"}
ROUND = {"round", "outcome", "cohort", "accepted", "declined", "reported"}
ROUND |= {"user_accuracy", "user_accuracy_min", "phase_seconds", "bytes_down", "bytes_up"}
PHASES = {"select", "recruit", "download", "train", "upload", "aggregate"}

QUICK = ["--devices", 2, "--strategy", "fedavg", "--rounds", 3, "--target-ua", "none", "--quorum", 1]
QUICK += ["--grace-s", 100, "--recruit-deadline-s", 100]

_MARK = "TEST_OF_DEMO"
_GONE_WITHIN_S = 100.0


@dataclass(frozen=True)
class Played:
    """A demo that has ended; `mark` is in the environment of all its processes."""

    done: Done
    out: Path
    mark: str

    @property
    def summary(self) -> dict[str, Any]:
        return dict(self.done.document)


def _demo(out: Path, *options: object, mark: str | None = None) -> Command:
    environment = {_MARK: mark or uuid.uuid4().hex}
    return Command("fedpatch", "demo", "--out", out, "--json", *options, environment=environment, preloaded=False)


def _play(out: Path, *options: object) -> Played:
    mark = uuid.uuid4().hex
    with _demo(out, *options, mark=mark) as command:
        return Played(command.done(patience_s=600), out, mark)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A demo with default options that has ended."""
    played = _play(tmp_path_factory.mktemp("demo"))
    assert played.done.code == 0, played.done.err
    yield played


def _alive(mark: str) -> list[str]:
    """Return the command lines of processes with `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def _assert_nothing_is_left(mark: str) -> None:
    """Check that no process is left, after a wait for processes that are just ending."""
    give_up_at = time.monotonic() + _GONE_WITHIN_S
    while (left := _alive(mark)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert left == []


def test_demo_reaches_its_target(played: Played):
    summary = played.summary
    assert summary["stopped_because"] == "target_ua"
    assert summary["user_accuracy"] >= TARGET
    curve = [one["user_accuracy"] for one in summary["rounds"]]
    assert len(curve) <= MOST_ROUNDS
    assert curve[-1] == summary["user_accuracy"]
    assert all(accuracy < TARGET for accuracy in curve[:-1])
    assert curve[0] < 0.5


def test_demo_json_has_the_documented_keys(played: Played):
    assert len(played.done.out.splitlines()) == 1
    summary = played.summary
    assert summary.keys() == SUMMARY
    assert [one["round"] for one in summary["rounds"]] == list(range(1, len(summary["rounds"]) + 1))
    for one in summary["rounds"]:
        assert one.keys() >= ROUND
        assert one["phase_seconds"].keys() == PHASES
        assert all(seconds >= 0 for seconds in one["phase_seconds"].values())
        assert (one["outcome"], one["cohort"], one["declined"]) == ("aggregated", DEVICES, 0)
        assert 0 < one["reported"] <= one["accepted"] <= DEVICES
        assert 0 <= one["user_accuracy_min"] <= one["user_accuracy"] <= 1
        assert one["bytes_down"] > 0
        assert one["bytes_up"] > 0


def test_exported_model_holds_the_public_tensors_alone(played: Played):
    assert len(list(played.out.glob("devices/*/patches/*.patch"))) == DEVICES
    schema = schema_of(TASK.build_model())
    policy = parse_policy("affine")
    with np.load(played.summary["model"], allow_pickle=False) as model:
        assert set(model) == set(policy.public(schema).names)
        assert set(model).isdisjoint(policy.private_names(schema))
        assert all(np.isfinite(model[name]).all() for name in model)


def test_show_prints_the_demo_run_afterwards(played: Played):
    shown = run("fedpatch", "show", played.summary["run"], "--state-dir", played.out / "coordinator", "--json")
    assert (shown.code, shown.document) == (0, played.summary)


def test_stderr_without_a_terminal_has_a_plain_line_per_round(played: Played):
    lines = played.done.err.splitlines()
    rounds = [line for line in lines if re.match(r"round \d+/30 aggregated: \d+/10 reported, UA [01]\.\d+ ", line)]
    assert len(rounds) == len(played.summary["rounds"])
    assert "\x1b" not in played.done.err
    assert "\r" not in played.done.err
    assert "Traceback" not in played.done.err


def test_no_process_outlives_the_demo(played: Played):
    _assert_nothing_is_left(played.mark)


@pytest.mark.slow
def test_same_seed_gives_the_same_curves_and_model(tmp_path: Path):
    curves, models = [], []
    for _ in range(2):
        played = _play(tmp_path / "demo", *QUICK)
        assert played.done.code == 0, played.done.err
        rounds = played.summary["rounds"]
        assert [one["reported"] for one in rounds] == [2] * 3
        keys = ("user_accuracy", "user_accuracy_min", "user_accuracy_after")
        curves.append([[one[key] for key in keys] for one in rounds])
        with np.load(played.summary["model"]) as model:
            models.append(dict(model))
    first, second = models
    np.testing.assert_allclose(curves[0], curves[1], rtol=0, atol=1e-6)
    assert curves[0][-1][0] > curves[0][0][0] + 0.1
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, rtol=0, atol=1e-6, err_msg=name)
    runs = run("fedpatch", "runs", "--state-dir", tmp_path / "demo" / "coordinator", "--json").document
    assert [one["status"] for one in runs] == ["finished", "finished"]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("waiting for devices", id="while it starts", marks=pytest.mark.slow),
        pytest.param("round 1/", id="in a round"),
    ],
)
def test_ctrl_c_ends_the_demo_and_its_processes(tmp_path: Path, moment: str):
    mark = uuid.uuid4().hex
    with _demo(tmp_path / "demo", "--devices", 2, "--target-ua", "none", "--rounds", 1000, mark=mark) as command:
        command.wait_err(moment)
        assert _alive(mark)
        done = command.interrupt()
    assert done.code == 130, done.err
    assert "Traceback" not in done.err
    _assert_nothing_is_left(mark)
    if moment == "round 1/":
        assert done.document["stopped_because"] == "interrupted"
        assert done.document["rounds"][0]["outcome"] == "aggregated"
