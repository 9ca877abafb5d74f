"""Backups of a device by a timer of systemd, which the role of the agent installs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.plays import ROLES, by_ansible, fleet_of, played, refused, stub

pytestmark = [by_ansible, pytest.mark.medium]

UNITS = ("fedpatch-agent-backup.service", "fedpatch-agent-backup.timer")


def _written(folder: Path, state: Path, **given: Any) -> subprocess.CompletedProcess[str]:
    """Play the part of the role that sets the backups up, without systemd, into `folder`."""
    files = [str(ROLES / "fleet" / name / "main.yml") for name in ("defaults", "vars")]
    files += [str(ROLES / "device_agent" / name / "main.yml") for name in ("defaults", "vars")]
    values = {"device_agent_unit_dir": str(folder), "device_agent_state_dir": str(state), **given}
    tasks = [{"ansible.builtin.include_tasks": str(ROLES / "device_agent" / "tasks" / "backup.yml")}]
    book = {"hosts": "devices", "vars_files": files, "tasks": tasks}
    return played(
        folder, fleet_of({"pi": values}), book, "--check", *(f"-e{name}={one}" for name, one in values.items())
    )


def test_backup_without_a_directory_or_with_a_passphrase_that_others_may_read_is_refused(tmp_path):
    stick, secret = tmp_path / "stick", tmp_path / "passphrase"
    given = {"device_agent_backup_dir": str(stick), "device_agent_backup_passphrase_file": str(secret)}
    secret.write_text("secret\n")
    secret.chmod(0o600)
    assert "mount or make" in refused(_written(tmp_path, tmp_path, **given))["pi"]
    stick.mkdir()
    secret.chmod(0o644)
    assert "readable by root only" in refused(_written(tmp_path, tmp_path, **given))["pi"]


def test_units_are_valid_and_keep_the_newest_backups(tmp_path):
    """The service has no network, writes to the directory of the backups only, and gets the passphrase from systemd."""
    files = [str(ROLES / "fleet" / name / "main.yml") for name in ("defaults", "vars")]
    files += [str(ROLES / "device_agent" / name / "main.yml") for name in ("defaults", "vars")]
    program = tmp_path / "fedpatch-agent"
    stub(program, "exit 0")
    templates = ROLES / "device_agent" / "templates"
    tasks = [
        {"ansible.builtin.template": {"src": f"{templates / name}.j2", "dest": str(tmp_path / name), "mode": "0644"}}
        for name in UNITS
    ]
    given = {"device_agent_backup_dir": "/media", "device_agent_program": str(program), "fleet_user": "daemon"}
    done = played(
        tmp_path,
        fleet_of({"pi": {}}),
        {"hosts": "devices", "vars_files": files, "tasks": tasks},
        *(f"-e{name}={value}" for name, value in given.items()),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    service = (tmp_path / UNITS[0]).read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    words = shlex.split(line)
    assert words[1:5] == ["backup", "/media", "--keep", "7"] and "%d/passphrase" in words
    for setting in ("PrivateNetwork=yes", "ProtectSystem=strict", "ReadWritePaths=/media"):
        assert setting in service.splitlines()
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "fedpatch-agent-backup" not in checked.stderr, checked.stderr


def test_no_backup_is_set_up_without_a_directory(tmp_path):
    done = _written(tmp_path, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [name for name in UNITS if (tmp_path / name).exists()]


@pytest.mark.skipif(os.geteuid() != 0, reason="the role acts as another user")
def test_backup_is_restored_once_and_neither_over_a_state_nor_in_part(tmp_path):
    """The program ends on "torn" after it has written the accounts, as on a full card."""
    for name in ("new", "torn", "ran", "trained"):
        (tmp_path / name).mkdir()
    (tmp_path / "ran" / "status.json").touch()
    (tmp_path / "trained" / "usage.json").touch()
    program = tmp_path / "fedpatch-agent"
    stub(
        program,
        f'echo "$*" >> {tmp_path}/calls; touch "${{5#--state-dir=}}/usage.json"; case "$5" in *torn) exit 1;; esac',
    )
    hosts: dict[str, dict[str, Any]] = {name: {} for name in ("new", "torn", "ran", "trained")}
    given = {
        "device_agent_program": str(program),
        "device_agent_restore_from": "/media/pi.backup",
        "fleet_user": "root",
    }
    given |= {"device_agent_id": "pi", "device_agent_state_dir": f"{tmp_path}/{{{{inventory_hostname}}}}"}
    files = [str(ROLES / "fleet" / name / "main.yml") for name in ("defaults", "vars")]
    files += [str(ROLES / "device_agent" / name / "main.yml") for name in ("defaults", "vars")]
    options = [f"-e{name}={value}" for name, value in given.items()]
    tasks = [{"ansible.builtin.include_tasks": str(ROLES / "device_agent" / "tasks" / "restore.yml")}]
    book = {"hosts": "devices", "vars_files": files, "tasks": tasks}
    for place in ("first", "second"):
        done = played(tmp_path, fleet_of(hosts), book, *options)
        refusals = refused(done)
        assert set(refusals) == {"torn", "ran", "trained"}, done.stdout + done.stderr
        assert ("interrupted" in refusals["torn"]) == (place == "second")
        assert "has run without its backup" in refusals["ran"] and "trained has a state" in refusals["trained"]
        assert len((tmp_path / "calls").read_text().splitlines()) == 2
