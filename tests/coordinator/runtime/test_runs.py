"""Whether `fedpatch run` begins a run, or takes up the one that did not come to its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.run_records import RoundRecord, RunSummary
from fedpatch.coordinator.runtime import run_execution
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.config.load import public_values
from fedpatch.shared.errors import UsageError


class Recorded:
    """What was called, with which run and settings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[RunSettings] = []
        self.gone_on: list[tuple[str, RunSettings]] = []
        self.said: list[str] = []
        monkeypatch.setattr(run_execution, "start_run", lambda settings, view, ports: self.begun.append(settings))
        monkeypatch.setattr(
            run_execution,
            "_go_on",
            lambda registry, run, settings, view, ports: self.gone_on.append((run.id, settings)),
        )

    def run(self, settings: RunSettings, **options: Any) -> RunSummary:
        """`fedpatch run`."""
        view: Any = SimpleNamespace(say=self.said.append)
        return run_execution.run_or_go_on(settings, view, **options)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Nothing is really run."""
    return Recorded(monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    """Those of a run that was cut short."""
    return RunSettings(state_dir=tmp_path / "state", fleet="lab", rounds=9, seed=3, broker="mqtt://old:1883")


def cut_short(settings: RunSettings) -> str:
    """The id of a run whose coordinator was killed."""
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        return registry.create_run(
            created_at=0.0, task="digits", strategy="s", private="none", settings=public_values(settings), schema=""
        ).id


def test_the_same_command_goes_on_with_a_run_that_was_cut_short(recorded, settings):
    """So that a service that is started again does not begin from nothing."""
    run = cut_short(settings)
    recorded.run(settings)
    assert (recorded.begun, recorded.gone_on) == ([], [(run, settings)])
    assert recorded.said == [f"run {run} was not finished; going on with it (--new begins another)"]


def test_the_broker_may_be_reached_in_another_way(recorded, settings):
    """It has moved, its password was changed: the run is the same."""
    run = cut_short(settings)
    moved = replace(settings, broker="mqtt://new:1883", username="me", password="secret")
    recorded.run(moved)
    assert recorded.gone_on == [(run, moved)]


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": None},
        {"metrics": "0.0.0.0:1"},
        {"metrics_max_devices": 3},
        {"encoding": "delta-int4"},
        {"devices": 11},
        {"wait_s": 1.0},
    ],
    ids=str,
)
def test_how_a_run_is_watched_and_travels_and_who_is_waited_for_is_no_matter_of_the_run(recorded, settings, changes):
    """It goes on, as the command says now: a device that joins or leaves the fleet does not throw away what was trained."""
    run = cut_short(settings)
    recorded.run(replace(settings, **changes))
    assert recorded.gone_on == [(run, replace(settings, **changes))]


@pytest.mark.parametrize("changes", [{"rounds": 10}, {"seed": 4}, {"target_ua": 0.9}, {"private": "none"}], ids=str)
def test_other_settings_begin_another_run_and_say_so(recorded, settings, changes):
    """Nothing of the old run is lost: the line says how to go on with it."""
    run = cut_short(settings)
    recorded.run(replace(settings, **changes))
    assert (len(recorded.begun), recorded.gone_on) == (1, [])
    assert recorded.said[0].endswith(f"`fedpatch resume {run}` goes on with it")


def test_a_new_run_can_be_insisted_on(recorded, settings):
    """`--new`."""
    cut_short(settings)
    recorded.run(settings, new=True)
    assert (recorded.begun, recorded.gone_on, recorded.said) == ([settings], [], [])


def ended(settings: RunSettings, how: str, outcome: str = "aggregated") -> str:
    """The id of a run that ended so, after a round with this `outcome` ("": none)."""
    run = cut_short(settings)
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        if outcome:
            registry.rounds.finish(run, RoundRecord(1, outcome, 1, 1, 0, 1))
        registry.finish_run(run, stopped_because=how, user_accuracy=None, model=None)
    return run


@pytest.mark.parametrize("how", ["interrupted", "failed"])
def test_a_run_that_was_stopped_is_taken_up_too(recorded, settings, how):
    """An orderly reboot, a full disk: a service that is started again is not to begin from nothing."""
    run = ended(settings, how)
    recorded.run(settings)
    assert (recorded.begun, recorded.gone_on) == ([], [(run, settings)])


@pytest.mark.parametrize("how", ["max_rounds", "target_ua", "deadline"])
def test_a_run_that_came_to_its_end_is_not_taken_up(recorded, settings, how):
    """The same command again means another run."""
    ended(settings, how)
    recorded.run(settings)
    assert (recorded.begun, recorded.gone_on, recorded.said) == ([settings], [], [])


@pytest.mark.parametrize("outcome", ["failed", ""])
def test_unless_done_begins_a_run_after_one_in_which_no_round_succeeded(recorded, settings, outcome):
    """There is nothing that could be called done."""
    ended(settings, "max_rounds", outcome)
    recorded.run(settings, unless_done=True)
    assert (recorded.begun, recorded.gone_on) == ([settings], [])


@pytest.mark.parametrize("how", ["max_rounds", "target_ua", "deadline"])
def test_unless_done_begins_no_run_after_one_that_came_to_its_end(recorded, settings, how):
    """A service that boots finds its work done: it says so, and what it came to, and asks nobody."""
    run = ended(settings, how)
    summary = recorded.run(settings, unless_done=True)
    assert (recorded.begun, recorded.gone_on) == ([], [])
    assert (summary.run, summary.stopped_because, summary.model) == (run, how, "")
    assert recorded.said == [
        f"run {run} with these settings has come to its end: {how}; other settings, or --new, begin another"
    ]


@pytest.mark.parametrize("how", ["interrupted", "failed"])
def test_unless_done_goes_on_with_a_run_that_was_cut_short(recorded, settings, how):
    """Only an end that the run was to have counts."""
    run = ended(settings, how)
    recorded.run(settings, unless_done=True)
    assert (recorded.begun, recorded.gone_on) == ([], [(run, settings)])


def test_unless_done_begins_a_run_where_there_is_none_with_these_settings(recorded, settings):
    """Nor is it done when the operator asked for something else since, if only for another seed."""
    recorded.run(settings, unless_done=True)
    ended(settings, "max_rounds")
    other = replace(settings, seed=settings.seed + 1)
    recorded.run(other, unless_done=True)
    assert (recorded.begun, recorded.said) == ([settings, other], [])


def test_only_the_last_run_says_whether_all_is_done(recorded, settings):
    """An earlier one with these settings does not: something else was wanted in between."""
    ended(settings, "max_rounds")
    ended(replace(settings, seed=settings.seed + 1), "max_rounds")
    recorded.run(settings, unless_done=True)
    assert recorded.begun == [settings]


def test_a_run_cannot_be_wanted_in_any_case_and_unless_done(recorded, settings):
    """The two contradict each other."""
    with pytest.raises(UsageError, match="use one of them"):
        recorded.run(settings, new=True, unless_done=True)
    assert (recorded.begun, recorded.gone_on) == ([], [])


def test_a_run_of_another_fleet_is_left_alone(recorded, settings):
    """One directory may serve several."""
    cut_short(replace(settings, fleet="other"))
    recorded.run(settings)
    assert recorded.begun == [settings]


def test_without_a_registry_none_is_made(recorded, settings):
    """A broker that cannot be reached leaves no trace."""
    recorded.run(settings)
    assert recorded.begun == [settings]
    assert not settings.state_dir.exists()
