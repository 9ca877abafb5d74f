"""A database of mosquitto that a power cut has broken is set aside, and no other one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

SCRIPT = ROOT / "broker_config" / "set-aside-database.sh"
# The head of a database of mosquitto 2 (persist.h): zeros of a checksum, its name, and the version of its format.
_HEAD = b"\x00\xb5\x00mosquitto db" + b"\0\0\0\0" + (6).to_bytes(4, "big")
# One record: shutdown, size of ids, last id.
_WHOLE = _HEAD + b"\0\0\0\1\0\0\0\x10O\0\0\0\0\0\0\0\1\x08" + bytes(6)
_BROKEN = {
    "zeros": bytes(300),
    "cut in its head": _HEAD[:9],
    "cut in a record": _HEAD + b"\0\0\0\1\0\0\0\x10\1\2\3",
}


def _fail(folder: Path, result: str = "exit-code", **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script as systemd does after mosquitto has ended with `result`, with `more` in its environment."""
    environment = {**os.environ, "SERVICE_RESULT": result, **more}
    return subprocess.run(
        ["sh", SCRIPT, folder], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.medium
@pytest.mark.broker
@pytest.mark.parametrize("kind", _BROKEN)
def test_database_that_mosquitto_cannot_read_is_set_aside(tmp_path: Path, kind: str):
    database = tmp_path / "mosquitto.db"
    database.write_bytes(_BROKEN[kind])
    done = _fail(tmp_path)
    assert (done.returncode, database.exists()) == (0, False), done.stderr
    assert (tmp_path / "mosquitto.db.damaged").read_bytes() == _BROKEN[kind]
    assert "set aside" in done.stderr


@pytest.mark.medium
@pytest.mark.broker
def test_whole_database_stays_after_a_failure_with_another_cause(tmp_path: Path):
    database = tmp_path / "mosquitto.db"
    database.write_bytes(_WHOLE)
    done = _fail(tmp_path)
    assert (done.returncode, done.stderr, database.read_bytes()) == (0, "", _WHOLE)


def _fail_with(program: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with `program` as mosquitto; returns also the names that it left in the folder of trials."""
    programs, trials = folder / "bin", folder / "trials"
    programs.mkdir()
    trials.mkdir()
    (programs / "mosquitto").write_text(program)
    (programs / "mosquitto").chmod(0o755)
    (folder / "mosquitto.db").write_bytes(_WHOLE)
    done = _fail(folder, PATH=f"{programs}:{os.environ['PATH']}", TMPDIR=str(trials))
    return done, [path.name for path in trials.iterdir()]


_SLOW_BROKER = """#!/bin/sh
trial=$(dirname "$2")
trap 'trap "" TERM; sleep 0.3; [ -d "$trial" ] && touch "$TMPDIR/saved"; exit 0' TERM
echo "Opening unix listen socket"
while :; do sleep 0.05; done
"""


def test_trial_is_removed_after_its_broker_has_saved_the_database(tmp_path: Path):
    done, left = _fail_with(_SLOW_BROKER, tmp_path)
    assert (done.returncode, done.stderr, left) == (0, "", ["saved"])


# Mosquitto handles signals before its main loop sets the flag that they clear: a signal in between has no effect.
_STARTING_BROKER = """#!/bin/sh
trap 'trap "exit 0" TERM' TERM
echo "Opening unix listen socket"
while :; do sleep 0.05; done
"""


def test_broker_of_a_trial_is_ended_though_it_lost_a_signal_during_its_start(tmp_path: Path):
    done, left = _fail_with(_STARTING_BROKER, tmp_path)
    assert (done.returncode, done.stderr, left) == (0, "", [])


def test_nothing_is_done_after_a_success_or_without_a_database(tmp_path: Path):
    assert _fail(tmp_path).returncode == 0
    (tmp_path / "mosquitto.db").write_bytes(b"broken")
    assert _fail(tmp_path, "success").returncode == 0
    assert (tmp_path / "mosquitto.db").exists()


def test_unit_and_role_call_the_script_where_it_is_installed():
    unit = (ROOT / "broker_config" / "mosquitto-limits.conf").read_text()
    tasks = (ROOT / "ansible" / "roles" / "broker" / "tasks" / "main.yml").read_text()
    place = "/etc/systemd/system/mosquitto.service.d/set-aside-database.sh"
    assert f"ExecStopPost=-/bin/sh {place} " in unit
    installed = [task for block in yaml.safe_load(tasks) for task in block.get("block", ())]
    copies = [task["ansible.builtin.copy"] for task in installed if "ansible.builtin.copy" in task]
    assert place in [copy["dest"] for copy in copies]
