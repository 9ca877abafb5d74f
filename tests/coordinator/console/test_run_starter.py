"""Runs that are started on the console: only from files named at its start, each in its own process."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the console is not installed (pip install 'fedpatch[console]')")

from fedpatch.coordinator.cli.main import app
from fedpatch.coordinator.console import run_starter
from fedpatch.coordinator.console.run_starter import RunStarter
from fedpatch.shared.app.command import run_app
from fedpatch.shared.errors import ConfigError, UsageError
from tests.coordinator.console.consoles import filled, served
from tests.support.brokers import free_port
from tests.support.programs import Program


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nightly.toml"
    path.write_text(f'broker = "mqtt://127.0.0.1:{free_port()}"\ndevices = 1\nmetrics = "none"\n')
    return path


@pytest.mark.parametrize("name", ["other", "../nightly", "nightly.toml", ""])
def test_name_that_is_no_file_of_the_operator_begins_nothing(file, tmp_path, name):
    with pytest.raises(UsageError, match="known: nightly"):
        RunStarter(tmp_path, [file]).begin(name)
    assert list(tmp_path.iterdir()) == [file]


def test_wrong_files_are_refused_at_the_start_of_the_console(file, tmp_path):
    (other := tmp_path / "other").mkdir()
    (twin := other / file.name).write_text(file.read_text())
    with pytest.raises(UsageError, match="same name"):
        RunStarter(tmp_path, [file, twin])
    file.write_text("devises = 1\n")
    with pytest.raises(ConfigError, match="devises"):
        RunStarter(tmp_path, [file])


def test_user_name_without_a_password_is_refused_at_the_start_of_the_console(file, tmp_path):
    terms = file.read_text()
    file.write_text(f'{terms}username = "coordinator"\n')
    with pytest.raises(UsageError, match=r"nightly\.toml: user 'coordinator' has no password.*password_file"):
        RunStarter(tmp_path, [file])
    for password in (f'password_file = "{tmp_path / "password"}"', 'password = "secret"'):
        file.write_text(f'{terms}username = "coordinator"\n{password}\n')
        assert RunStarter(tmp_path, [file]).names == ["nightly"]


@pytest.mark.parametrize("runs", [False, True], ids=["no earlier run", "an earlier run"])
def test_run_that_the_console_begins_gets_no_password_from_its_environment(file, tmp_path, monkeypatch, capsys, runs):
    place, found = tmp_path / "state", dict[str, str]()
    place.mkdir(mode=0o700)
    if runs:
        with filled(place):
            pass
    file.write_text(f'{file.read_text()}username = "coordinator"\npassword_file = "{tmp_path / "password"}"\n')
    monkeypatch.setenv("FEDPATCH_PASSWORD", "secret")
    monkeypatch.setattr("fedpatch.coordinator.console.server.serve", lambda *_: found.update(os.environ))
    ended = Program(lambda: run_app(app, "fedpatch"), monkeypatch, capsys)(
        "console", "--state-dir", place, "--actions", "--begin", file
    )
    assert ended.code == 0 and found and "FEDPATCH_PASSWORD" not in found


def test_run_that_ends_at_once_is_an_error_with_its_last_message(file, tmp_path, monkeypatch):
    monkeypatch.setattr(run_starter, "START_S", 120.0)
    starter = RunStarter(tmp_path, [file])
    file.unlink()
    with pytest.raises(UsageError, match=r"nightly has not begun: .*nightly\.toml"):
        starter.begin("nightly")


def test_messages_of_an_earlier_run_stay_in_the_log_and_are_not_those_of_the_new_one(file, tmp_path, monkeypatch):
    monkeypatch.setattr(run_starter, "START_S", 120.0)
    monkeypatch.setattr(sys, "executable", "false")
    log = tmp_path / "console-nightly.log"
    log.write_text("round 1/30 aggregated\n")
    with pytest.raises(UsageError, match=r"nightly has not begun: exit code 1$"):
        RunStarter(tmp_path, [file]).begin("nightly")
    assert log.read_text() == "round 1/30 aggregated\n"


def test_run_at_work_is_not_begun_twice_and_lacks_the_lower_priority_of_the_console(file, tmp_path, monkeypatch):
    monkeypatch.setattr(run_starter, "START_S", 0.0)
    starter = RunStarter(tmp_path, [file])
    with ThreadPoolExecutor(1) as console:
        console.submit(os.nice, 5).result()  # lowers the priority of this thread only
        assert "console-nightly.log" in console.submit(starter.begin, "nightly").result()
    (process,) = starter._processes.values()
    try:
        with pytest.raises(UsageError, match="at work already"):
            starter.begin("nightly")
        assert os.getsid(process.pid) == process.pid
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        process.kill()
        process.wait()


@pytest.mark.medium
def test_named_runs_are_shown_to_and_started_by_the_operator_only(file, tmp_path, monkeypatch):
    monkeypatch.setattr(run_starter, "START_S", 120.0)
    place = tmp_path / "state"
    with filled(place), served(place, actions=True, begin=(file,)) as console:
        file.unlink()  # so a started run ends at once
        assert console.ask("/api/session").json["begin"] == []
        assert console.ask("/api/begin/nightly", {}).status == 403
        assert not (place / "console-nightly.log").exists()
        console.login()
        assert console.ask("/api/session").json["begin"] == ["nightly"]
        assert console.ask("/api/begin/nightly", {}, X_CSRF_Token="wrong").status == 403
        assert console.ask("/api/begin/nightly").status == 405
        assert console.ask("/api/begin/..%2fnightly", {}).status in (400, 404)
        assert "nightly.toml" in console.ask("/api/begin/nightly", {}).json["error"]
