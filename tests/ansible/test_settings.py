"""Settings and secrets of a service, as the roles write them."""

from __future__ import annotations

import os
import re
import shlex
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.plays import by_ansible, fleet_of, played, refused, stub, tasks_of

SECRET = 'a"b\\c $d ü\n\tlast line\n'


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_changed_settings_restart_the_service_once_and_its_secrets_are_in_a_file_of_root_alone(tmp_path):
    """Null values are left out; the others keep their types."""
    settings = {"task": "digits", "rounds": 3, "seed": None, "charging": True, "patterns": ["a", "ü"]}
    given: dict[str, Any] = {
        "fleet_settings_file": str(tmp_path / "agent.toml"),
        "fleet_settings": settings,
        "fleet_environment": {"TOKEN": SECRET},
        "fleet_restart": "Restart it",
        "fleet_user": "root",
    }
    handlers = [{"name": "Restart it", "ansible.builtin.debug": {"msg": "restarted"}}]
    play = {"hosts": "devices", "tasks": [tasks_of("fleet", "settings.yml", **given)], "handlers": handlers}
    plays = [played(tmp_path, fleet_of({"pi-1": {}}), play, "--diff") for _ in range(2)]
    assert [done.stdout.count('"msg": "restarted"') for done in plays] == [1, 0], plays[0].stdout + plays[0].stderr
    written = tomllib.loads(Path(given["fleet_settings_file"]).read_text("utf-8"))
    assert written == {name: value for name, value in settings.items() if value is not None}
    secrets = tmp_path / "agent.env"
    # systemd unquotes a value as a shell does, and has no escape for a line break.
    assert shlex.split(secrets.read_text("utf-8"), comments=True) == [f"TOKEN={SECRET}"]
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert "$d" not in plays[0].stdout


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_changed_settings_restart_the_service_if_a_later_task_fails(tmp_path):
    """The next play finds the settings unchanged."""
    given: dict[str, Any] = {
        "fleet_settings_file": str(tmp_path / "agent.toml"),
        "fleet_settings": {"task": "digits"},
        "fleet_environment": {},
        "fleet_restart": "Restart it",
        "fleet_user": "root",
    }
    handlers = [{"name": "Restart it", "ansible.builtin.debug": {"msg": "restarted"}}]
    tasks = [tasks_of("fleet", "settings.yml", **given), {"ansible.builtin.fail": {"msg": "the CA is in use"}}]
    done = played(tmp_path, fleet_of({"pi-1": {}}), {"hosts": "devices", "tasks": tasks, "handlers": handlers})
    assert refused(done) == {"pi-1": "the CA is in use"}, done.stdout + done.stderr
    assert done.stdout.count('"msg": "restarted"') == 1


@pytest.mark.slow
@by_ansible
def test_service_that_started_before_its_files_were_written_is_restarted(tmp_path):
    """The connection was lost before the handlers of the former play. A wrong clock may have written a time in the future."""
    now, began_us = time.time(), int((time.monotonic() - 60.0) * 1e6)
    hosts: dict[str, Any] = {
        "former": {"state": "active", "written": now - 30.0},
        "present": {"state": "active", "written": now - 90.0},
        "future": {"state": "active", "written": now + 86400.0},
        "stopped": {"state": "inactive", "written": now - 30.0},
        "bare": {"state": "active", "written": None},
    }
    for name, host in hosts.items():
        shown = f"ExecMainStartTimestampMonotonic={began_us}\\nActiveState={host['state']}\\n"
        stub(tmp_path / name / "systemctl", f"printf '{shown}'")
        if host["written"]:
            file = tmp_path / name / "agent.toml"
            file.touch()
            os.utime(file, (host["written"], host["written"]))
    given: dict[str, Any] = {
        "fleet_unit": "fedpatch-agent.service",
        "fleet_files": [f"{tmp_path}/{{{{ inventory_hostname }}}}/agent.toml"],
        "fleet_program_dir": str(tmp_path / "none"),
        "fleet_restart": "Restart it",
    }
    play = {
        "hosts": "devices",
        "environment": {"PATH": f"{tmp_path}/{{{{ inventory_hostname }}}}:/usr/bin:/bin"},
        "tasks": [tasks_of("fleet", "newer.yml", **given)],
        "handlers": [{"name": "Restart it", "ansible.builtin.debug": {"msg": "restarted {{ inventory_hostname }}"}}],
    }
    done = played(tmp_path, fleet_of(hosts), play)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r'"msg": "restarted (.*)"', done.stdout) == ["former"]
