"""The command line `fedpatch`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.find_strategy import STRATEGIES
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunSummary
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from tests.coordinator.registry_builders import new_run, seen
from tests.support.programs import Ended, install

ROUNDS = (
    RoundRecord(
        1, "failed", cohort=3, accepted=1, declined=2, reported=0, decline_reasons={"unwilling": 2}, failure="x"
    ),
    RoundRecord(
        2,
        "aggregated",
        cohort=3,
        accepted=3,
        declined=0,
        reported=3,
        user_accuracy=0.9125,
        user_accuracy_min=0.5,
        user_accuracy_after=0.95,
        phase_seconds=PhaseSeconds(train=1.5, upload=0.5),
        bytes_down=54_000,
        bytes_up=51_000,
    ),
)

HEAVY = {"amqtt", "matplotlib", "numpy", "paho", "sklearn", "starlette", "torch", "uvicorn"}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """State directory with a run that reached its target, a later run that is not finished, and two devices."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        first = new_run(registry, 1.0e9).id
        for record in ROUNDS:
            registry.rounds.finish(first, record)
        registry.finish_run(first, stopped_because="target_ua", user_accuracy=0.9125, model="/models/a.npz")
        new_run(registry, 1.1e9)
        seen(registry, "pi-1", fleet="kitchen", now=1.0e9, online=True, version="1", tasks=["digits"])
        seen(registry, "pi-2", fleet="garden", now=1.0e9, online=False)
        registry.count("kitchen", ("pi-1", "declined", "unwilling"))
    return tmp_path


@pytest.fixture
def elsewhere(state_dir: Path, tmp_path_factory, monkeypatch) -> Path:
    """A copy of `state_dir` as the state directory of a demo in the current directory."""
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    copied: Path = here / "demo-out" / "coordinator"
    shutil.copytree(state_dir, copied)
    return copied


def _first_run(state_dir: Path) -> str:
    with Registry(state_dir / REGISTRY_FILE, readonly=True) as registry:
        return registry.runs()[-1].id


def test_show_json_prints_the_object_of_the_run(fedpatch, state_dir):
    run = _first_run(state_dir)
    ended = fedpatch("show", run, "--state-dir", state_dir, "--json")
    assert ended == Ended(0, RunSummary(run, "target_ua", 0.9125, "/models/a.npz", ROUNDS).to_json() + "\n", "")


def test_show_json_takes_user_accuracy_from_the_last_aggregated_round(fedpatch, state_dir):
    """A failed round has measured only a part of its devices."""
    run = _first_run(state_dir)
    with Registry(state_dir / REGISTRY_FILE) as registry:
        registry.rounds.finish(run, replace(ROUNDS[1], round=3, outcome="failed", user_accuracy=0.1, failure="x"))
    assert json.loads(fedpatch("show", run, "--state-dir", state_dir, "--json").out)["user_accuracy"] == 0.9125


def test_show_prints_each_round_and_the_end(fedpatch, state_dir):
    out = fedpatch("show", _first_run(state_dir)[:10], "--state-dir", state_dir).out
    assert re.search(r"^ +1  failed \(x\) +0/3 +- +- +- +0.0 s +0 B +0 B$", out, re.MULTILINE)
    assert re.search(r"^ +2  aggregated +3/3  0\.912 +0\.500 +0\.950  2\.0 s  54 kB  51 kB$", out, re.MULTILINE)
    assert "round 1: declined: unwilling 2" in out
    assert "target reached after 2 rounds, user accuracy 0.912" in out
    assert "model: /models/a.npz" in out


def test_runs_lists_the_newest_run_first_and_last_is_the_newest(fedpatch, state_dir):
    listed = json.loads(fedpatch("runs", "--state-dir", state_dir, "--json").out)
    assert [one["status"] for one in listed] == ["running", "finished"]
    rows = fedpatch("runs", "--state-dir", state_dir).out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [one["id"] for one in listed]
    assert "finished (target reached)" in rows[1]
    shown = json.loads(fedpatch("show", "last", "--state-dir", state_dir, "--json").out)
    assert (shown["stopped_because"], shown["rounds"]) == ("running", [])


@pytest.mark.parametrize("command", ["show", "stop", "export", "report", "metrics", "resume", "evaluate"])
def test_command_without_a_run_takes_the_last_one(fedpatch, state_dir, tmp_path_factory, monkeypatch, command):
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    named, unnamed = (fedpatch(command, *run, "--state-dir", state_dir) for run in (("last",), ()))
    assert (named.code, named.out, named.err) == (unnamed.code, unnamed.out, unnamed.err)


def test_devices_lists_state_tasks_counters_and_last_reason(fedpatch, state_dir):
    listed = json.loads(fedpatch("devices", "--state-dir", state_dir, "--json").out)
    assert [(one["id"], one["online"], one["declined"]) for one in listed] == [("pi-1", True, 1), ("pi-2", False, 0)]
    rows = fedpatch("devices", "--state-dir", state_dir, "--fleet", "kitchen").out.splitlines()
    assert len(rows) == 2
    assert rows[1].split()[:3] == ["pi-1", "kitchen", "online"]
    assert rows[1].endswith("unwilling")


def test_state_directory_may_come_from_the_environment(fedpatch, state_dir, monkeypatch):
    monkeypatch.setenv("FEDPATCH_STATE_DIR", str(state_dir))
    assert len(json.loads(fedpatch("runs", "--json").out)) == 2


@pytest.mark.parametrize("argv", [("runs",), ("show", "last"), ("devices",)])
def test_state_directory_of_demo_is_read_and_printed_on_stderr(fedpatch, elsewhere, argv):
    ended = fedpatch(*argv, "--json")
    assert (ended.code, ended.err) == (0, f"in {elsewhere}\n")
    assert ended.out == fedpatch(*argv, "--json", "--state-dir", elsewhere).out
    assert fedpatch("show", _first_run(elsewhere)).err == ""


@pytest.mark.parametrize(
    "argv",
    [("devices", "drain", "pi-1"), ("inventory", "--list"), ("report", "last"), ("export", "last"), ("stop", "last")],
    ids=lambda argv: argv[0],
)
def test_command_that_finds_the_state_directory_of_a_demo_prints_it_on_stderr(fedpatch, elsewhere, argv):
    assert fedpatch(*argv).err.startswith(f"in {elsewhere}\n")


def test_default_state_directory_comes_before_the_demos_and_is_not_printed(fedpatch, elsewhere):
    shutil.copytree(elsewhere, elsewhere.parents[1] / "fedpatch-state")
    assert fedpatch("runs").err == ""


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_command_with_another_broker_without_tls_takes_the_option_that_its_refusal_names(fedpatch, state_dir, command):
    argv = (command, "last", "--state-dir", state_dir, "--broker", "mqtt://192.0.2.1")
    refused = fedpatch(*argv)
    assert refused.code == 2 and "allow it with --insecure" in refused.err
    taken = fedpatch(*argv, "--insecure")  # goes on to the next check
    assert taken.code == 1 and "start a new run" in taken.err


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_command_that_changes_the_last_run_needs_the_state_directory_and_names_no_other_command(
    fedpatch, elsewhere, command
):
    ended = fedpatch(command, "last")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith(f"if it is, name its directory: --state-dir {elsewhere}\n")


@pytest.mark.parametrize("argv", [("runs",), ("show", "last"), ("devices",), ("resume", "last")])
def test_state_directory_without_runs_is_a_usage_error_and_not_created(fedpatch, tmp_path, argv):
    ended = fedpatch(*argv, "--state-dir", tmp_path / "none")
    assert (ended.code, ended.out) == (2, "")
    assert "--state-dir" in ended.err
    assert not (tmp_path / "none").exists()


def test_show_of_an_unknown_run_is_a_usage_error(fedpatch, state_dir):
    ended = fedpatch("show", "1999", "--state-dir", state_dir)
    assert ended.code == 2
    assert "'1999'" in ended.err and "last" in ended.err


def test_tasks_lists_a_broken_task_with_its_problem(fedpatch, tmp_path, monkeypatch):
    install("[fedpatch.tasks]\nlamp = no_such_module:TASK\n", tmp_path, monkeypatch)
    row = next(line for line in fedpatch("tasks").out.splitlines() if line.startswith("lamp"))
    assert "cannot be used" in row and "no_such_module" in row
    listed = {one["name"]: one for one in json.loads(fedpatch("tasks", "--json").out)}
    assert "no_such_module" in listed["lamp"]["problem"]


def test_strategies_lists_all_strategies(fedpatch):
    listed = json.loads(fedpatch("strategies", "--json").out)
    assert {one["name"]: one["description"] for one in listed} == {n: s.description for n, s in STRATEGIES.own.items()}
    assert "fedavg-adam" in fedpatch("strategies").out


@pytest.mark.parametrize(
    ("because", "code"), [("target_ua", 0), ("max_rounds", 0), ("deadline", 0), ("failed", 1), ("interrupted", 130)]
)
def test_exit_code_of_run_follows_from_its_end(fedpatch, tmp_path, monkeypatch, because, code):
    """Stdout has only the JSON object; a failed run prints to stderr how to resume it."""
    summary = RunSummary("a-run", because, 0.5, "m.npz", ROUNDS)
    monkeypatch.setattr("fedpatch.coordinator.runtime.run_or_resume.run_or_resume", lambda settings, view, **_: summary)
    ended = fedpatch("run", "--json", "--state-dir", tmp_path)
    assert (ended.code, ended.out) == (code, summary.to_json() + "\n")
    assert ("fedpatch resume a-run" in ended.err) is (code != 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_after_the_end_of_a_run_does_not_lose_its_result(fedpatch, tmp_path, monkeypatch, number):
    summary = RunSummary("a-run", "target_ua", 0.5, "m.npz", ROUNDS)
    monkeypatch.setattr("fedpatch.coordinator.runtime.run_or_resume.run_or_resume", lambda settings, view, **_: summary)
    monkeypatch.setattr("fedpatch.coordinator.cli.main._print_resume_command", lambda *_: os.kill(os.getpid(), number))
    ended = fedpatch("run", "--json", "--state-dir", tmp_path)
    assert (ended.code, ended.out) == (0, summary.to_json() + "\n")


def test_resume_passes_on_changed_settings_and_the_password(fedpatch, state_dir, monkeypatch):
    """The password is passed on because a run does not store it; a password file overrides the environment."""
    calls = []

    def resume_run(*args: object, **given: object) -> RunSummary:
        calls.append((args[0], args[1], given))
        return RunSummary("a-run", "max_rounds", 0.5, "", ROUNDS)

    monkeypatch.setattr("fedpatch.coordinator.runtime.resume_run.resume_run", resume_run)
    monkeypatch.setenv("FEDPATCH_PASSWORD", "secret")
    ended = fedpatch("resume", "last", "--state-dir", state_dir, "--rounds", "60", "--target-ua", "0.9")
    assert ended.code == 0
    given = {"broker": None, "password": "secret", "rounds": 60, "target_ua": 0.9, "metrics": None, "insecure": False}
    given |= {"encoding": None, "password_file": None}
    assert calls == [(state_dir, "last", given)]
    monkeypatch.setenv("FEDPATCH_PASSWORD", "secret")
    assert fedpatch("resume", "last", "--state-dir", state_dir, "--password-file", "/a/file").code == 0
    assert (calls[1][2]["password"], calls[1][2]["password_file"]) == (None, Path("/a/file"))


def test_wrong_settings_are_printed_together(fedpatch):
    ended = fedpatch("run", "--quorum", "7", "--rounds", "many")
    assert (ended.code, ended.out) == (2, "")
    assert sorted(line.split(": ")[:2] for line in ended.err.splitlines()) == [
        ["fedpatch", "--quorum"],
        ["fedpatch", "--rounds"],
    ]


def test_missing_ca_file_is_a_usage_error(fedpatch, tmp_path):
    ended = fedpatch(
        "run", "--broker", "mqtts://broker.local", "--ca-file", tmp_path / "ca.pem", "--state-dir", tmp_path
    )
    assert (ended.code, ended.out) == (2, "")
    assert f"{tmp_path}/ca.pem: not a file of CA certificates" in ended.err


def test_print_config_prints_toml_and_runs_nothing(fedpatch, tmp_path):
    ended = fedpatch("demo", "--devices", "3", "--print-config", "--out", tmp_path / "demo")
    assert ended.code == 0
    assert re.search(r"^devices = 3", ended.out, re.MULTILINE)
    assert not (tmp_path / "demo").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("argv", "heavy"),
    [(["runs", "--help"], HEAVY | {"fedpatch.simulator"}), (["--help"], HEAVY), (["simulate", "--help"], HEAVY)],
)
def test_command_line_imports_no_heavy_package(argv, heavy):
    """Help, `runs` and `show` start quickly."""
    program = (
        "import sys, typer, fedpatch.cli, fedpatch.coordinator.cli.tables;"
        "import fedpatch.coordinator.storage.run_registry;"
        f"typer.main.get_command(fedpatch.cli.app)({argv!r}, standalone_mode=False);"
        f"print(*sorted({heavy!r} & sys.modules.keys()), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == ""
