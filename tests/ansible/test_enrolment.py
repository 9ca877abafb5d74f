"""The identity of a device, where its enrolment is interrupted."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest
import yaml

from tests.hosts.plays import HERE, ROLES, by_ansible, fleet_of, played, stub, tasks_of


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_enrolment_of_a_revoked_device_that_is_interrupted_is_repeated_though_the_device_has_its_former_password(
    tmp_path,
):
    """By then, the CA's record has the new password, and the brokers refuse the former one."""
    stub(tmp_path / "fedpatch", 'while [ "$1" != --out ]; do shift; done; echo bundle >"$2"')
    stub(tmp_path / "agent", "exit 1")
    (tmp_path / "state" / "identity").mkdir(parents=True)
    (tmp_path / "state" / "identity" / "password").write_text("former")
    given: dict[str, Any] = {
        "device_agent_is_known": True,
        "device_agent_program": str(tmp_path / "agent"),
        "device_agent_state_dir": str(tmp_path / "state"),
        "fleet_ca_dir": str(tmp_path / "ca"),
        "fleet_config_dir": str(tmp_path),
        "fleet_control_command": str(tmp_path / "fedpatch"),
        "fleet_user": "root",
    }
    groups = {"broker_nodes": "node", "broker": "hub", "coordinator": "hub", "devices": "pi"}
    inventory = {"vars": HERE, "children": {group: {"hosts": {host: {}}} for group, host in groups.items()}}
    begun = []
    for state in ("revoked", "good"):
        given["device_agent_known"] = {"state": state}
        task = tasks_of("device_agent", "identity.yml", **given)
        done = played(tmp_path, inventory, {"hosts": "devices", "tasks": [task]})
        begun += re.findall(r"^included: \S+/enrol.yml for (.*)$", done.stdout, re.MULTILINE)
        assert "Install the bundle" in done.stdout, done.stdout + done.stderr
    assert begun == ["pi", "pi"]


@pytest.mark.slow
@by_ansible
def test_agent_that_runs_with_its_former_password_is_restarted(tmp_path):
    """An agent reads the password only when it starts. It has run since before a revoked device was enrolled again."""
    began_us = int((time.monotonic() - 60.0) * 1e6)
    stub(tmp_path / "bin" / "systemctl", f"echo ExecMainStartTimestampMonotonic={began_us}; echo ActiveState=active")
    hosts: dict[str, Any] = {}
    for name, age_s in (("again", 30.0), ("same", 90.0)):
        password = tmp_path / name / "agent" / "identity" / "password"
        password.parent.mkdir(parents=True)
        password.touch()
        os.utime(password, (time.time() - age_s,) * 2)
        hosts[name] = {}
    role = yaml.safe_load((ROLES / "device_agent" / "tasks" / "main.yml").read_text())
    [look] = [task for task in role[0]["block"] if task["name"] == "Check that the service is newer than its files"]
    place = f"{tmp_path}/{{{{ inventory_hostname }}}}"
    play = {
        "hosts": "devices",
        "vars_files": [str(ROLES / "device_agent" / "vars" / "main.yml")],
        "vars": {"fleet_state_dir": place, "fleet_config_dir": place, "fleet_program_dir": place},
        "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        "tasks": [look],
        "handlers": [
            {"name": "Restart the agent", "ansible.builtin.debug": {"msg": "restarted {{ inventory_hostname }}"}}
        ],
    }
    done = played(tmp_path, fleet_of(hosts), play)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r'"msg": "restarted (.*)"', done.stdout) == ["again"]


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role runs a command as another user")
def test_device_with_a_password_gets_the_renewed_certificate_of_the_ca(tmp_path):
    """It keeps its bundle; a device with a certificate gets another one before the certificate of the CA ends."""
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.crt").write_text("renewed\n")
    identity = tmp_path / "agent" / "identity"
    identity.mkdir(parents=True)
    for name in ("password", "ca.crt"):
        (identity / name).write_text("former\n")
    given: dict[str, Any] = {
        "device_agent_is_known": True,
        "device_agent_known": {"state": "good"},
        "fleet_ca_dir": str(tmp_path / "ca"),
        "fleet_control_command": "/bin/false",
        "fleet_state_dir": str(tmp_path),
        "fleet_user": "root",
    }
    groups = {"broker_nodes": "node", "broker": "hub", "coordinator": "hub", "devices": "pi"}
    inventory = {"vars": HERE, "children": {group: {"hosts": {host: {}}} for group, host in groups.items()}}
    play = {"hosts": "devices", "tasks": [tasks_of("device_agent", "identity.yml", **given)] * 2}
    done = played(tmp_path, inventory, play)
    assert re.search(r"^pi .* changed=1 ", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert [(identity / name).read_text() for name in ("password", "ca.crt")] == ["former\n", "renewed\n"]
