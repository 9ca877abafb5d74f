"""The nodes of an ejabberd cluster; the name of one node may be a prefix of another's."""

from __future__ import annotations

import pytest

from tests.hosts.plays import HERE, by_ansible, played, stub, tasks_of

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
