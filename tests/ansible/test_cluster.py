"""The nodes of an ejabberd cluster, the name of one of which may be a prefix of another's, and the broker before them."""

from __future__ import annotations

import json

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
def test_former_services_of_the_same_fleet_leave_their_port_to_the_broker_of_the_inventory(tmp_path):
    """One broker becomes several, or several one. Services of another fleet, which has another port, stay."""
    record = f'[ "$1" != stop ] || echo "$2" >>{tmp_path}/$NODE/stopped'
    stub(tmp_path / "bin" / "systemctl", f"{record}; echo LoadState=loaded; echo ActiveState=active")
    roles = ["broker", "balancer", "broker_node"]
    texts = {
        "mosquitto": mosquitto_acl("kitchen").replace("fleet kitchen:", "fleet {{ fleet_name }}:"),
        "haproxy": (ROLES / "balancer" / "templates" / "haproxy.cfg.j2").read_text(),
        "ejabberd": (ROLES / "broker_node" / "templates" / "ejabberd.yml.j2").read_text(),
    }
    hosts = [*roles, "other"]
    for host in hosts:
        (tmp_path / host).mkdir()
        for service, text in texts.items():
            fleet = "kitchen-2" if host == "other" else "kitchen"
            (tmp_path / host / service).write_text(text.replace("{{ fleet_name }}", fleet))
    (tmp_path / "other" / "ejabberd").unlink()
    tasks = []
    for role in roles:
        parts = yaml.safe_load((ROLES / role / "tasks" / "main.yml").read_text())
        [part] = [one for part in parts for one in part.get("block", ()) if one["name"].startswith("Stop former")]
        included = tasks_of("broker", "stop.yml", **part["vars"])
        tasks.append({**included, "when": f"inventory_hostname in ['{role}', 'other']"})
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NODE": "{{ inventory_hostname }}"}
    files = {service: f"{tmp_path}/{{{{ inventory_hostname }}}}/{service}" for service in texts}
    play = {"hosts": "devices", "environment": environment, "tasks": tasks}
    done = played(tmp_path, fleet_of({host: {} for host in hosts}), play, "-e", json.dumps({"broker_marked": files}))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {host: tmp_path / host / "stopped" for host in hosts}
    assert {host: sorted(path.read_text().split()) for host, path in found.items() if path.exists()} == {
        "broker": ["ejabberd.service", "haproxy.service"],
        "balancer": ["ejabberd.service", "mosquitto.service"],
        "broker_node": ["haproxy.service", "mosquitto.service"],
    }


def test_files_that_name_the_fleet_of_a_service_are_those_that_the_roles_install():
    marked = yaml.safe_load((ROLES / "broker" / "vars" / "main.yml").read_text())["broker_marked"]
    tasks = "".join((ROLES / role / "tasks" / "main.yml").read_text() for role in ("broker", "balancer", "broker_node"))
    assert [f'dest: "{file}"' in tasks or f"dest: {file}\n" in tasks for file in marked.values()] == [True] * 3
