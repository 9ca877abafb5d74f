"""A device is retired by all hosts that let it in, or by none."""

from __future__ import annotations

import re

import pytest

from tests.hosts.plays import ANSIBLE, HERE, by_ansible, played, stub

# None listens at port 1.
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}


@pytest.mark.slow
@by_ansible
def test_device_is_not_revoked_by_a_play_that_leaves_out_its_broker_or_its_coordinator(tmp_path):
    """The broker would admit the revoked device, and the playbook would report no error."""
    stub(tmp_path / "fedpatch", f'echo "$*" >>{tmp_path}/calls')
    groups = {"broker": ["mqtt"], "coordinator": ["hub"], "devices": ["pi-1", "pi-2"]}
    inventory = {
        "vars": HERE | AWAY | {"fleet_control_command": str(tmp_path / "fedpatch"), "fleet_ca_dir": str(tmp_path)},
        "children": {group: {"hosts": {host: {} for host in hosts}} for group, hosts in groups.items()},
    }
    for limit, lacking in {"pi-1": ["mqtt", "hub"], "pi-1,mqtt": ["hub"], "mqtt,hub": ["pi-1"]}.items():
        done = played(tmp_path, inventory, ANSIBLE / "retire.yml", "-e", "retired=pi-1", "--limit", limit)
        assert done.returncode != 0, done.stdout + done.stderr
        assert re.findall(r"^failed: .*--limit leaves out (\S+): ", done.stdout, re.MULTILINE) == lacking, done.stdout
    assert not (tmp_path / "calls").exists()
    played(tmp_path, inventory, ANSIBLE / "retire.yml", "-e", "retired=pi-1", "--limit", "!pi-2")
    assert (tmp_path / "calls").read_text().startswith("device revoke pi-1 ")
