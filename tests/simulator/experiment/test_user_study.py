"""The user's own simulation from Python: the command's result, cancellation, a task of a notebook, trackers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedpatch
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.trackers import tracking
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun
from fedpatch.simulator.experiment.output_folder import CURVE_FILE, OUTCOME_FILE, PICTURE
from fedpatch.simulator.experiment.user_study import study_of
from tests.simulator.small_task import TASK

TERMS: dict[str, Any] = {"clients": 4, "rounds": 2, "strategy": "fedavg", "workers": 1}


def curve(outcome: fedpatch.Outcome) -> list[float]:
    return [point.user_accuracy for point in outcome.points]


def test_two_simulations_at_once_give_what_each_gives_alone():
    alone = {seed: curve(fedpatch.simulate("digits", seed=seed, progress=False, **TERMS)) for seed in (0, 1)}
    jobs = {seed: fedpatch.start_simulation("digits", seed=seed, **TERMS) for seed in (0, 1)}
    assert {seed: curve(job.result()) for seed, job in jobs.items()} == alone
    assert alone[0] != alone[1]


@pytest.mark.medium
def test_cancelled_simulation_is_incomplete_and_goes_on_from_its_folder(tmp_path):
    pytest.importorskip("matplotlib")
    with fedpatch.start_simulation("digits", out=tmp_path / "out", **{**TERMS, "rounds": 5}) as job:
        for point in job:
            if point.round == 1:
                job.cancel()
    assert not job.result().complete
    done = fedpatch.simulate("digits", out=tmp_path / "out", progress=False, **{**TERMS, "rounds": 5})
    assert done.complete
    assert curve(done)[:2] == curve(job.result())[:2]


class Killed(BaseException):
    """Ends a simulation at a place where a process may be killed."""


@pytest.mark.parametrize("at", ["write_atomic", "save", "shutil.rmtree"])
def test_a_simulation_killed_while_it_writes_its_files_completes_them_when_repeated(tmp_path, monkeypatch, at):
    pytest.importorskip("matplotlib")

    def kill(path: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(path, Path) and path.name == OUTCOME_FILE:
            return write_atomic(path, *args, **kwargs)
        raise Killed

    terms: dict[str, Any] = {**TERMS, "rounds": 1, "progress": False, "out": tmp_path}
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"fedpatch.simulator.experiment.output_folder.{at}", kill)
        fedpatch.simulate("digits", **terms)
    left = json.loads((tmp_path / OUTCOME_FILE).read_text("utf-8"))
    fedpatch.simulate("digits", **terms)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([OUTCOME_FILE, CURVE_FILE, PICTURE])
    assert json.loads((tmp_path / OUTCOME_FILE).read_text("utf-8")) == left


def test_task_that_no_name_finds_is_simulated_in_this_process():
    task = replace(TASK, name="of-a-notebook", simulation_data="seed=0,client={index},used=3")
    outcome = fedpatch.simulate(task, clients=3, rounds=1, strategy="fedavg", learning_rate=0.1, progress=False)
    assert outcome.study.task == "of-a-notebook"
    assert len(outcome.points) == 2


def test_terms_have_the_defaults_of_the_command():
    study, task = study_of("digits", {"secure": "groups", "clients": 8, "strategy": None})
    assert (study.strategy, study.private, task) == ("fedavg", "affine", None)
    assert study_of("digits", {"strategy": "pfedme", "learning_rate": 0.1, "proximity": 1.0})[0].private == "none"


def test_unknown_term_is_named_with_the_nearest():
    with pytest.raises(fedpatch.UsageError, match="unknown term 'client'"):
        fedpatch.simulate("digits", client=3)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"trackers": "tensorboard"}, r"trackers: 'tensorboard' is not a sequence; write \['tensorboard'\]"),
        ({"private": " names:*"}, "leaves nothing to federate; use --strategy independent"),
    ],
)
def test_terms_that_name_nothing_to_do_are_refused_with_the_remedy(terms, words):
    with pytest.raises(fedpatch.UsageError, match=words):
        fedpatch.simulate("digits", clients=3, rounds=1, progress=False, **terms)


class Kept:
    """A tracker that keeps all runs, rounds and outcomes."""

    def __init__(self) -> None:
        self.runs: list[TrackedRun] = []
        self.rounds: list[int] = []
        self.outcomes: list[str] = []

    def begin(self, run: TrackedRun) -> None:
        self.runs.append(run)

    def log(self, round: TrackedRound) -> None:
        self.rounds.append(round.number)

    def end(self, outcome: str) -> None:
        self.outcomes.append(outcome)


@pytest.mark.medium
def test_trackers_get_each_point_once_over_an_interruption(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    kept = Kept()
    monkeypatch.setattr(tracking, "make_trackers", lambda names: {"kept": kept})
    terms = {**TERMS, "rounds": 3, "out": tmp_path / "out", "trackers": ["tensorboard"]}
    monkeypatch.setattr("fedpatch.simulator.experiment.user_study.make_trackers", lambda names: {})
    with fedpatch.start_simulation("digits", **terms) as job:
        for point in job:
            if point.round == 1:
                job.cancel()
    fedpatch.simulate("digits", progress=False, **terms)
    assert kept.rounds == [0, 1, 2, 3]
    assert kept.outcomes[-1] == "max_rounds"
    assert len({run.id for run in kept.runs}) == 1
    assert json.dumps(dict(kept.runs[0].settings))
