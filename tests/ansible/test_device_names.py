"""Names of devices: each belongs to one device of the fleet, and the broker admits devices by the same names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.hosts.plays import ROLES, by_ansible, fleet_of, played, refused, stub, tasks_of


@pytest.mark.medium
@by_ansible
def test_a_name_that_no_device_can_have_is_refused_before_anything_is_installed(tmp_path):
    """Refused: capitals, the names of relays and devices without ssh, and of another device by settings or inventory."""
    hosts = {
        "pi-1": {},
        "Pi-2": {},
        "pi-3": {"device_agent_id": "one"},
        "pi-4": {"device_agent_id": "one"},
        "Pi-5": {"device_agent_id": "pi-5"},
        "pi-6": {"device_agent_id": "pi-7"},
        "pi-7": {},
        "site-1": {},
        "away": {},
    }
    variables: dict[str, Any] = {"device_agent_settings": {"data": "here"}, "fleet_program_dir": str(tmp_path / "none")}
    variables |= {"fleet_relays": ["site-1"], "fleet_other_devices": ["away"]}
    play = {"hosts": "devices", "tasks": [tasks_of("device_agent", "checks.yml")]}
    done = played(tmp_path, fleet_of(hosts, **variables), play, "--check")
    refusals = refused(done)
    assert set(refusals) == {"Pi-2", "pi-3", "pi-4", "pi-6", "pi-7", "site-1", "away"}, done.stdout + done.stderr
    assert refusals["Pi-2"].startswith("Pi-2 cannot be Pi-2 in its fleet: a name has 1 to 32 of a-z")


@pytest.mark.medium
@by_ansible
def test_the_broker_admits_devices_under_the_names_that_they_have(tmp_path):
    """The name is `device_agent_id` if the host has it, else the host's name in the inventory."""
    devices = {"hosts": {"one": {"device_agent_id": "kitchen-{{ inventory_hostname }}"}, "two": {}}}
    groups = {"devices": devices, "broker": {"hosts": {"hub": {"ansible_connection": "local"}}}}
    files = [str(ROLES / name / "main.yml") for name in ("fleet/defaults", "fleet/vars", "broker/defaults")]
    away = tmp_path / "away.yml"
    away.write_text("fleet_other_devices: [away]")
    tasks = [{"ansible.builtin.debug": {"msg": "{{ broker_devices | join(' ') }}"}}]
    play = {"hosts": "broker", "vars_files": [*files, str(away)], "tasks": tasks}
    done = played(tmp_path, {"children": groups}, play)
    assert '"msg": "kitchen-one two away"' in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@by_ansible
def test_the_record_of_the_ca_is_read_once_for_all_devices(tmp_path):
    """A thousand devices would else start a thousand commands on the control host. Each device has its own entry of it."""
    record = [
        {"name": name, "state": state, "reason": "", "serial": "1"}
        for name, state in (("one", "good"), ("two", "revoked"))
    ]
    stub(tmp_path / "fedpatch", f"echo asked >> {tmp_path}/asked; echo '{json.dumps(record)}'")
    variables: dict[str, Any] = {
        "device_agent_settings": {"data": "here"},
        "fleet_control_command": str(tmp_path / "fedpatch"),
    }
    known = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} is known: {{ device_agent_is_known }}"}}
    play = {"hosts": "devices", "tasks": [tasks_of("device_agent", "checks.yml"), known]}
    done = played(tmp_path, fleet_of({"one": {}, "two": {}, "three": {}}, **variables), play)
    assert set(refused(done)) == {"two"}, done.stdout + done.stderr
    assert "one is known: True" in done.stdout
    assert "three is known: False" in done.stdout
    assert (tmp_path / "asked").read_text().split() == ["asked"]


@pytest.mark.slow
@by_ansible
def test_a_record_that_cannot_be_read_ends_a_dry_run_only_if_there_is_a_ca(tmp_path):
    stub(tmp_path / "fedpatch", "echo the record is damaged >&2; exit 1")
    codes = {}
    for name in ("absent", "damaged"):
        folder = tmp_path / name
        folder.mkdir()
        variables: dict[str, Any] = {
            "device_agent_settings": {"data": "here"},
            "fleet_control_command": str(tmp_path / "fedpatch"),
            "fleet_ca_dir": str(folder),
            "fleet_program_dir": str(tmp_path / "none"),
        }
        if name == "damaged":
            (folder / "index.json").touch()
        play = {"hosts": "devices", "tasks": [tasks_of("device_agent", "checks.yml")]}
        codes[name] = played(tmp_path, fleet_of({"one": {}}, **variables), play, "--check").returncode
    assert codes == {"absent": 0, "damaged": 2}
