"""Directories of a service's user: root does not write there, so a link there gives that user no access to the host."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.plays import HERE, ROLES, by_ansible, played, tasks_of

pytestmark = [
    by_ansible,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="the roles give files to root"),
]

USER = "daemon"
FEDPATCH = str(Path(sysconfig.get_path("scripts"), "fedpatch"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can enter."""
    folder = Path(tempfile.mkdtemp(prefix="fedpatch-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _inventory(place: Path, hosts: dict[str, dict[str, Any]], **given: Any) -> dict[str, Any]:
    """Return an inventory of hosts that are broker, coordinator and device, each with its own folders."""
    for name in hosts:
        (place / name / "etc").mkdir(parents=True)
    values = {
        "fleet_ca_dir": str(place / "ca"),
        "fleet_user": USER,
        "fleet_config_dir": f"{place}/{{{{ inventory_hostname }}}}/etc",
        "fleet_state_dir": f"{place}/{{{{ inventory_hostname }}}}",
        "fleet_program_dir": f"{place}/{{{{ inventory_hostname }}}}/opt",
    }
    groups = {group: {"hosts": hosts} for group in ("broker", "coordinator", "devices")}
    return {"vars": HERE | values | given, "children": groups}


def test_link_in_the_coordinators_state_directory_gives_its_user_nothing(place):
    """The record of revoked devices is copied there; without such a link, a coordinator and a relay get it, once."""
    for name in ("ca.crt", "ca.crl", "coordinator/client.key", "coordinator/client.crt", "index.json"):
        (place / "ca" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "ca" / name).write_text('{"entries": []}\n')
    (place / "kept").mkdir()
    inventory = _inventory(place, {"honest": {}, "linked": {}})
    for name in ("honest", "linked"):
        for service in ("coordinator", "relay"):
            (place / name / service).mkdir()
            shutil.chown(place / name / service, USER)
    (place / "linked" / "coordinator" / "ca").symlink_to(place / "kept")
    play = {"hosts": "coordinator", "tasks": [tasks_of("coordinator", "identity.yml"), tasks_of("relay", "record.yml")]}
    plays = [played(place, inventory, play) for _ in range(2)]
    assert ((place / "kept").owner(), list((place / "kept").iterdir())) == ("root", [])
    for record in (place / "honest" / name / "index.json" for name in ("coordinator/ca", "relay/site/ca")):
        assert (record.read_bytes(), record.owner()) == ((place / "ca" / "index.json").read_bytes(), USER)
        assert record.stat().st_mode & 0o777 == 0o600
    changed = [re.findall(r"^honest .* changed=(\d+)", done.stdout, re.M) for done in plays]
    assert changed == [["5"], ["0"]], plays[0].stdout + plays[0].stderr
    identity = place / "honest" / "etc" / "coordinator"
    assert (identity.owner(), (identity / "client.key").owner()) == ("root", USER)


def test_identity_of_an_enrolled_device_belongs_to_its_user_and_its_settings_stay(place):
    """If a device's settings name a broker, the bundle of the device names the same broker."""
    broker = "mqtts://hub.example:8883"
    settings = {"task": "digits", "data": "here", "broker": broker}
    hosts = {"pi-1": {"device_agent_id": "pi-1"}, "pi-2": {"device_agent_id": "pi-2", "fleet_user": "root"}}
    record: dict[str, Any] = {
        "device_agent_known": {},
        "device_agent_is_known": False,
        "device_agent_settings": settings,
        "fleet_broker_url": "mqtts://elsewhere.example",
    }
    inventory = _inventory(place, hosts, fleet_control_command=FEDPATCH, **record)
    for name, user in (("pi-1", USER), ("pi-2", "root")):
        program = place / name / "opt/current/bin/fedpatch-agent"
        program.parent.mkdir(parents=True)
        program.symlink_to(Path(FEDPATCH).with_name("fedpatch-agent"))
        (place / name / "agent").mkdir()
        shutil.chown(place / name / "agent", user)
    files = [str(ROLES / role / "vars" / "main.yml") for role in ("fleet", "device_agent")]
    template = {"src": str(ROLES / "fleet/templates/settings.toml.j2"), "dest": "{{ device_agent_config }}"}
    write = {"ansible.builtin.template": {**template, "mode": "0640", "group": "{{ fleet_user }}"}}
    write["vars"] = {"fleet_settings": "{{ device_agent_all_settings }}"}
    same = {**write, "register": "again", "failed_when": "again is changed"}
    play = {"hosts": "devices", "vars_files": files, "tasks": [write, tasks_of("device_agent", "enrol.yml"), same]}
    made = {"hosts": "broker[0]", "roles": ["authority"]}
    assert played(place, inventory, made).returncode == 0
    done = played(place, inventory, play)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, user in (("pi-1", USER), ("pi-2", "root")):
        assert (place / name / "agent/identity/client.pem").owner() == user
        assert f'broker = "{broker}"' in (place / name / "etc/agent.toml").read_text()
    assert [path.name for path in (place / "pi-1/etc").iterdir()] == ["agent.toml"]
