"""`fedpatch run`: conditions under which it starts a new run or resumes the unfinished run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.guard.stop_request import STOP_FILE, StopRequest, request_stop
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.runtime import resume_run, run_or_resume
from fedpatch.coordinator.runtime.evaluate_run import evaluate_run
from fedpatch.coordinator.runtime.ports import REAL
from fedpatch.coordinator.runtime.run_places import fleet_lock, run_directory
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.config.load import public_values
from fedpatch.shared.errors import StateError, UsageError
from tests.coordinator.registry_builders import new_run
from tests.support.brokers import Mosquitto


class Recorded:
    """Records whether a run is started or resumed, and with which settings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[RunSettings] = []
        self.gone_on: list[tuple[str, RunSettings]] = []
        self.lines: list[str] = []
        monkeypatch.setattr(run_or_resume, "start_run", lambda settings, view, ports: self.begun.append(settings))
        monkeypatch.setattr(
            run_or_resume,
            "resume_registered",
            lambda registry, run, settings, view, ports: self.gone_on.append((run.id, settings)),
        )

    def run(self, settings: RunSettings, **options: Any) -> RunSummary:
        view: Any = SimpleNamespace(say=self.lines.append)
        return run_or_resume.run_or_resume(settings, view, **options)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    """The settings of an interrupted run."""
    return RunSettings(state_dir=tmp_path / "state", fleet="lab", rounds=9, seed=3, broker="mqtt://old:1883")


def cut_short(settings: RunSettings) -> str:
    """Create a run whose coordinator was killed, and return its id."""
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        return new_run(registry, settings=public_values(settings)).id


def ended(settings: RunSettings, how: str, outcome: str = "aggregated") -> str:
    """Create a run that ended by `how` ("": killed) after a round with this `outcome` ("": no round); return its id."""
    run = cut_short(settings)
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        if outcome:
            registry.rounds.finish(run, RoundRecord(1, outcome, 1, 1, 0, 1))
        if how:
            registry.finish_run(run, stopped_because=how, user_accuracy=None, model=None)
    return run


@pytest.mark.parametrize("unless_done", [False, True])
@pytest.mark.parametrize("how", ["", "interrupted", "failed"])
def test_run_that_was_cut_short_goes_on(recorded, settings, how, unless_done):
    run = ended(settings, how)
    recorded.run(settings, unless_done=unless_done)
    assert (recorded.begun, recorded.gone_on) == ([], [(run, settings)])
    assert recorded.lines == [f"run {run} was not finished; going on with it (--new begins another)"]


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": None},
        {"metrics": "0.0.0.0:1"},
        {"metrics_max_devices": 3},
        {"encoding": "delta-bf16"},
        {"devices": 11},
        {"wait_s": 1.0},
        {"broker": "mqtt://new:1883", "username": "me", "password": "secret"},
    ],
    ids=str,
)
def test_settings_that_change_no_result_go_on_with_the_run(recorded, settings, changes):
    run = cut_short(settings)
    recorded.run(replace(settings, **changes))
    assert recorded.gone_on == [(run, replace(settings, **changes))]


def test_run_of_an_earlier_version_goes_on_if_its_former_setting_has_the_default(recorded, settings, caplog):
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings=public_values(settings) | {"keep": 1})
    recorded.run(settings)
    assert (recorded.begun, recorded.gone_on) == ([], [(run.id, settings)])
    changes = {"broker": "mqtt://localhost"}
    assert resume_run.settings_of(run, settings.state_dir, changes, None, None).rounds == settings.rounds
    assert caplog.records == []


@pytest.mark.parametrize(("name", "value"), [("keep", 4), ("aggregate", "bucketed:3")])
def test_run_that_used_a_former_setting_is_neither_resumed_nor_gone_on_with(recorded, settings, name, value):
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings=public_values(settings) | {name: value})
    recorded.run(settings)
    assert (len(recorded.begun), recorded.gone_on) == (1, [])
    with pytest.raises(
        UsageError, match=f"run {run.id} has {name} = {value}, which only earlier versions of fedpatch know"
    ):
        resume_run.settings_of(run, settings.state_dir, {}, None, None)


def test_run_with_a_former_encoding_is_resumed_with_another_one_only(settings):
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings=public_values(settings) | {"encoding": "delta-int4"})
    with pytest.raises(UsageError, match=r"has encoding = delta-int4, .* resume it with --encoding delta-int8"):
        resume_run.settings_of(run, settings.state_dir, {}, None, None)
    changes = {"encoding": "delta-int8", "broker": "mqtt://localhost"}
    assert resume_run.settings_of(run, settings.state_dir, changes, None, None).encoding == "delta-int8"


@pytest.mark.parametrize("changes", [{"rounds": 10}, {"seed": 4}, {"target_ua": 0.9}, {"private": "none"}], ids=str)
def test_other_settings_begin_another_run_and_name_the_resume_command(recorded, settings, changes):
    run = cut_short(settings)
    recorded.run(replace(settings, **changes))
    assert (len(recorded.begun), recorded.gone_on) == (1, [])
    assert recorded.lines[0].endswith(f"`fedpatch resume {run}` goes on with it")


def test_new_begins_another_run_and_excludes_unless_done(recorded, settings):
    cut_short(settings)
    recorded.run(settings, new=True)
    assert (recorded.begun, recorded.gone_on, recorded.lines) == ([settings], [], [])
    with pytest.raises(UsageError, match="use one of them"):
        recorded.run(settings, new=True, unless_done=True)


@pytest.mark.parametrize("how", ["max_rounds", "target_ua", "deadline"])
def test_run_after_a_finished_one_begins_unless_done(recorded, settings, how):
    run = ended(settings, how)
    summary = recorded.run(settings, unless_done=True)
    assert (recorded.begun, recorded.gone_on) == ([], [])
    assert (summary.run, summary.stopped_because, summary.model) == (run, how, "")
    assert recorded.lines == [
        f"run {run} with these settings has come to its end: {how}; other settings, or --new, begin another"
    ]
    recorded.run(settings)
    assert (recorded.begun, recorded.gone_on, len(recorded.lines)) == ([settings], [], 1)


@pytest.mark.parametrize("outcome", ["failed", ""])
def test_unless_done_begins_a_run_after_one_without_a_successful_round(recorded, settings, outcome):
    ended(settings, "max_rounds", outcome)
    recorded.run(settings, unless_done=True)
    assert (recorded.begun, recorded.gone_on) == ([settings], [])


def test_unless_done_begins_a_run_where_there_is_none_with_these_settings(recorded, settings):
    recorded.run(settings, unless_done=True)
    ended(settings, "max_rounds")
    other = replace(settings, seed=settings.seed + 1)
    recorded.run(other, unless_done=True)
    assert (recorded.begun, recorded.lines) == ([settings, other], [])


def test_unless_done_looks_at_the_last_run_only(recorded, settings):
    ended(settings, "max_rounds")
    ended(replace(settings, seed=settings.seed + 1), "max_rounds")
    recorded.run(settings, unless_done=True)
    assert recorded.begun == [settings]


def test_run_of_another_fleet_is_left_alone(recorded, settings):
    cut_short(replace(settings, fleet="other"))
    recorded.run(settings)
    assert recorded.begun == [settings]


def test_run_without_a_registry_makes_none(recorded, settings):
    recorded.run(settings)
    assert recorded.begun == [settings]
    assert not settings.state_dir.exists()


@pytest.mark.broker
def test_run_whose_directory_cannot_be_made_ends_with_the_remedy_and_waits_for_a_resume(settings, prepared):
    settings.state_dir.mkdir(mode=0o700)
    (settings.state_dir / "runs").touch()
    view: Any = SimpleNamespace(say=lambda line: None)
    with Mosquitto() as broker, pytest.raises(StateError, match="name another directory"):
        start_run(replace(settings, broker=broker.url), view, replace(REAL, prepare=lambda _: prepared))
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        assert registry.run("last").status == "interrupted"


class Reached(Exception):
    """The command has checked the run."""


def evaluate(settings: RunSettings, run: str) -> None:
    """Evaluate a run up to its preparation, which raises Reached with the settings as its argument."""

    def prepare(given: RunSettings) -> Any:
        raise Reached(given)

    view: Any = SimpleNamespace(say=lambda line: None)
    ports = replace(REAL, prepare=prepare)
    evaluate_run(settings.state_dir, run, view, broker="mqtt://localhost", ports=ports)


@pytest.mark.parametrize(("stopped", "expected"), [("deadline", Reached), ("interrupted", UsageError)])
def test_carried_work_refuses_an_evaluation_only_of_an_unfinished_run(settings, stopped, expected):
    """A run whose time ends between two rounds has cancelled the work, and a resume would train again."""
    run = cut_short(replace(settings, late="carry"))
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        work = CarriedWork(1, 1, version=0, base="ab" * 32, encoding="fp32")
        registry.rounds.finish(run, RoundRecord(1, "aggregated", 2, 2, 0, 2), {"pi-1": work})
        registry.finish_run(run, stopped_because=stopped, user_accuracy=None, model=None)

    with pytest.raises(expected):
        evaluate(settings, run)


def test_finished_run_with_an_open_round_is_not_evaluated(settings):
    """It was resumed with fewer rounds. An evaluation would go on with the training of the open round."""
    run = cut_short(settings)
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        registry.rounds.finish(run, RoundRecord(1, "aggregated", 2, 2, 0, 2))
        registry.rounds.open(run, RoundJournal(2, 2, ("pi-1", "pi-2"), base="ab" * 32), BootTime.now())
        registry.finish_run(run, stopped_because="max_rounds", user_accuracy=None, model=None)

    with pytest.raises(UsageError, match=r"open work at its devices; `fedpatch resume .*` with more --rounds"):
        evaluate(settings, run)


def test_run_with_a_former_encoding_is_evaluated_with_the_default_one(settings):
    """`fedpatch evaluate` has no --encoding."""
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings=public_values(settings) | {"encoding": "delta-int8-quarter"}).id
    with pytest.raises(Reached) as reached:
        evaluate(settings, run)
    assert reached.value.args[0].encoding == RunSettings.encoding


def test_stop_that_is_asked_while_a_run_of_a_killed_coordinator_connects_counts_and_an_earlier_one_does_not(
    settings, monkeypatch
):
    run = cut_short(settings)
    directory = run_directory(settings.state_dir, run)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / STOP_FILE).touch()
    earlier = []

    def connect(*_: object) -> None:
        earlier.append((directory / STOP_FILE).exists())
        request_stop(settings.state_dir, run)
        raise Reached

    monkeypatch.setattr(resume_run, "Connection", connect)
    prepared: Any = SimpleNamespace(schema=SimpleNamespace(digest="5c" * 32))
    view: Any = SimpleNamespace(say=lambda line: None)
    ports = replace(REAL, prepare=lambda _: prepared)
    with pytest.raises(Reached):
        resume_run.resume_run(settings.state_dir, run, view, broker="mqtt://localhost", ports=ports)
    assert (earlier, StopRequest(directory).poll()) == ([False], True)


def test_new_run_is_refused_in_the_directory_of_a_relay_that_has_a_run_of_its_hub(recorded, settings):
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": settings.fleet, "parent": "world"}).id
    with pytest.raises(UsageError, match=f"run {run} is a run of the fleet world, .*--state-dir"):
        recorded.run(settings)
    assert (recorded.begun, recorded.gone_on) == ([], [])


@pytest.mark.parametrize("work", [resume_run.resume_run, evaluate_run])
def test_run_of_a_hub_in_the_directory_of_a_relay_is_refused(settings, work):
    """It has rounds of the relay's site only, and no settings of the run."""
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        run = new_run(registry, settings={"fleet": "site-7", "parent": "world"}).id
    view: Any = SimpleNamespace(say=lambda line: None)
    with pytest.raises(UsageError, match=f"run {run} is a run of the fleet world, .*--state-dir"):
        work(settings.state_dir, run, view)


@pytest.mark.parametrize("begin", ["evaluate", "run"])
def test_run_that_another_coordinator_plays_is_named_as_such_and_nothing_else_is_said(recorded, settings, begin):
    """The remedy for its open work, and the announcement of a new run, would both be refused."""
    run = cut_short(settings)
    settings.state_dir.chmod(0o700)
    with fleet_lock(settings.state_dir, settings.fleet), pytest.raises(UsageError, match="another fedpatch is working"):
        if begin == "evaluate":
            evaluate(settings, run)
        else:
            recorded.run(replace(settings, rounds=settings.rounds + 1))
    assert (recorded.begun, recorded.lines) == ([], [])
