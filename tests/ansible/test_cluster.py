"""The nodes of an ejabberd cluster, the name of one of which may be a prefix of another's, and the broker before them."""

from __future__ import annotations

import pytest
import yaml

from fedpatch.shared.wire.topics import mosquitto_acl
from tests.hosts.plays import HERE, ROLES, by_ansible, fleet_of, played, stub, tasks_of

EJABBERDCTL = """
cd "$(dirname "$0")/../$NODE"
case $1 in
join_cluster) echo "$2" >>cluster ;;
list_cluster) cat cluster ;;
esac
"""


@pytest.mark.slow
@by_ansible
def test_node_joins_the_first_one_unless_it_knows_it_already_by_its_whole_name(tmp_path):
    """192.168.1.10 is not 192.168.1.1."""
    addresses = {"first": "192.168.1.1", "long": "192.168.1.10", "member": "192.168.1.11"}
    for name, address in addresses.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster").write_text(f"'ejabberd@{address}'\n")
    with (tmp_path / "member" / "cluster").open("a") as cluster:
        cluster.write("'ejabberd@192.168.1.1'\n")
    stub(tmp_path / "bin" / "ejabberdctl", EJABBERDCTL)
    stub(tmp_path / "bin" / "systemctl", "echo LoadState=loaded; echo ActiveState=active")
    hosts = {name: {"ansible_host": address} for name, address in addresses.items()}
    groups = {
        "broker_nodes": {"hosts": hosts},
        "broker": {"hosts": {"first": {}}},
        "coordinator": {"hosts": {"first": {}}},
    }
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NODE": "{{ inventory_hostname }}"}
    play = {"hosts": "broker_nodes", "environment": path, "tasks": [tasks_of("broker_node", "join.yml")]}
    done = played(tmp_path, {"vars": HERE, "children": groups}, play)
    assert done.returncode == 0, done.stdout + done.stderr
    known = {name: (tmp_path / name / "cluster").read_text().replace("'", "").split() for name in addresses}
    assert known == {
        "first": ["ejabberd@192.168.1.1"],
        "long": ["ejabberd@192.168.1.10", "ejabberd@192.168.1.1"],
        "member": ["ejabberd@192.168.1.11", "ejabberd@192.168.1.1"],
    }


@pytest.mark.slow
@by_ansible
def test_mosquitto_of_the_same_fleet_leaves_its_port_to_haproxy_and_ejabberd(tmp_path):
    """site.yml has set it up. The mosquitto of another fleet, which has another port, stays."""
    stub(
        tmp_path / "bin" / "systemctl",
        f'echo "$@" >>{tmp_path}/$NODE/calls; echo LoadState=loaded; echo ActiveState=active',
    )
    hosts: dict[str, dict[str, str]] = {"former": {}, "other": {}, "none": {}}
    for name, fleet in (("former", "kitchen"), ("other", "kitchen-2"), ("none", "")):
        (tmp_path / name).mkdir()
        if fleet:
            (tmp_path / name / "fedpatch.acl").write_text(mosquitto_acl(fleet))
    parts = []
    for role in ("balancer", "broker_node"):
        tasks = yaml.safe_load((ROLES / role / "tasks" / "main.yml").read_text())
        parts += [task for one in tasks for task in one.get("block", ()) if task["name"] == "Stop a former mosquitto"]
    assert len(parts) == 2
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NODE": "{{ inventory_hostname }}"}
    play = {"hosts": "devices", "environment": path, "tasks": parts}
    done = played(tmp_path, fleet_of(hosts), play, "-e", f"broker_dir={tmp_path}/{{{{ inventory_hostname }}}}")
    assert done.returncode == 0, done.stdout + done.stderr
    calls = {name: (tmp_path / name / "calls") for name in hosts}
    assert "stop mosquitto.service" in calls["former"].read_text()
    assert not calls["other"].exists() and not calls["none"].exists()
