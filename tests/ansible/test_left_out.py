"""The identity of a device changes, and a host whose part is needed is left out by --limit, or is away."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedpatch.coordinator.pki.x509 import Period, make_ca, new_key
from tests.hosts.plays import ANSIBLE, HERE, by_ansible, played, refused, stub, tasks_of

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


@pytest.mark.slow
@by_ansible
@pytest.mark.parametrize("retired", ["pi-9", "site-7"], ids=["device without ssh", "relay"])
def test_name_that_is_no_host_of_the_inventory_is_revoked_and_has_no_access_rule_any_more(tmp_path, retired):
    """The dry run shows what the broker would get; it installs nothing and revokes nothing."""
    stub(tmp_path / "fedpatch", f'echo "$*" >>{tmp_path}/calls; echo rules')
    given: dict[str, Any] = {"fleet_control_command": str(tmp_path / "fedpatch"), "fleet_ca_dir": str(tmp_path)}
    given |= {"fleet_other_devices": ["pi-8", "pi-9"], "fleet_relays": ["site-7"]}
    groups = {"broker": ["hub"], "coordinator": ["hub"], "devices": ["pi-1"]}
    children: dict[str, Any] = {group: {"hosts": {host: {} for host in hosts}} for group, hosts in groups.items()}
    options = ["-e", f"retired={retired}"]
    done = played(tmp_path, {"vars": HERE | AWAY | given, "children": children}, ANSIBLE / "retire.yml", *options)
    revoked, *more = (tmp_path / "calls").read_text().splitlines()
    assert (revoked.startswith(f"device revoke {retired} "), more) == (True, []), done.stdout + done.stderr
    here = {"ansible_become": False, "fleet_bare": True}
    inventory = {"vars": HERE | here | given, "children": children}
    done = played(tmp_path, inventory, ANSIBLE / "retire.yml", *options, "--check")
    (rules,) = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("broker acl ")]
    allowed = {"pi-1", "pi-8", "pi-9", "site-7"} - {retired}
    assert set(re.findall(r"--device (\S+)", rules)) == allowed, done.stdout + done.stderr


@pytest.mark.slow
@by_ansible
def test_name_that_the_inventory_does_not_have_is_not_retired(tmp_path):
    groups = {"broker": ["hub"], "coordinator": ["hub"], "devices": ["pi-1"]}
    children: dict[str, Any] = {group: {"hosts": {host: {} for host in hosts}} for group, hosts in groups.items()}
    done = played(tmp_path, {"vars": HERE | AWAY, "children": children}, ANSIBLE / "retire.yml", "-e", "retired=hub")
    assert refused(done)["hub"].startswith("no device or relay of the inventory is named"), done.stdout + done.stderr
    assert "UNREACHABLE" not in done.stdout


@pytest.mark.slow
@by_ansible
def test_device_is_blocked_at_each_node_of_a_cluster_whose_first_node_is_away(tmp_path):
    """Here the second node is away too, but it was tried."""
    stub(tmp_path / "fedpatch", "true")
    groups = {"broker_nodes": ["one", "two"], "broker": ["hub"], "coordinator": ["hub"], "devices": ["pi"]}
    inventory = {
        "vars": HERE | AWAY | {"fleet_control_command": str(tmp_path / "fedpatch"), "fleet_ca_dir": str(tmp_path)},
        "children": {group: {"hosts": {host: {} for host in hosts}} for group, hosts in groups.items()},
    }
    done = played(tmp_path, inventory, ANSIBLE / "retire.yml", "-e", "retired=pi")
    tried = re.findall(r"^(\w+) .* unreachable=1", done.stdout, re.MULTILINE)
    assert tried == ["one", "two"], done.stdout + done.stderr


@pytest.mark.slow
@by_ansible
def test_device_gets_no_identity_from_a_play_that_leaves_out_its_broker(tmp_path):
    """The broker would not admit it, or would still admit the former certificate. A device that keeps its identity passes."""
    hosts: dict[str, Any] = {}
    for name, recorded in {"new": "", "half": "abc", "same": "abc"}.items():
        identity = tmp_path / name / "agent" / "identity"
        identity.mkdir(parents=True)
        (identity / "client.pem").write_bytes(make_ca("kitchen", new_key(), 0xABC, Period(0, 2**32)))
        known = {"state": "good", "serial": recorded, "others_good": int(name == "half")}
        hosts[name] = {"fleet_state_dir": str(tmp_path / name), "device_agent_known": known}
    rest: dict[str, Any] = {"hosts": {"hub": {}}}
    groups = {"broker": rest, "coordinator": rest, "devices": {"hosts": hosts}}
    inventory = {"vars": HERE | {"device_agent_is_known": True}, "children": groups}
    play = {"hosts": "devices", "tasks": [tasks_of("device_agent", "identity.yml")]}
    done = played(tmp_path, inventory, play, "--check", "--limit", "devices")
    refusals = refused(done)
    assert set(refusals) == {"new", "half"}, done.stdout + done.stderr
    assert refusals["new"].startswith("new needs another identity, and --limit leaves out the broker, ")
    done = played(tmp_path, inventory, play, "--check", "--limit", "hub,new")
    assert done.returncode == 0, done.stdout + done.stderr
