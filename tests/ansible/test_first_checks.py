"""Checks of the playbooks before their first change of a host."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts.plays import ANSIBLE, HERE, by_ansible, played

# None listens at port 1, so a play that gets past the checks fails at its first contact.
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}


def _inventory(groups: dict[str, list[str]], **variables: Any) -> dict[str, Any]:
    children: dict[str, Any] = {group: {"hosts": {host: {} for host in hosts}} for group, hosts in groups.items()}
    return {"vars": HERE | AWAY | variables, "children": children}


@by_ansible
@pytest.mark.parametrize(
    ("more", "named"), [({"database": ["db"]}, "database"), ({"coordinator": ["hub", "hub-2"]}, "two coordinators")]
)
def test_group_that_only_scale_out_sets_up_is_refused_before_any_host_is_reached(tmp_path, more, named):
    groups = {"broker": ["hub"], "coordinator": ["hub"], "devices": ["pi"], **more}
    done = played(tmp_path, _inventory(groups), ANSIBLE / "site.yml")
    assert f"the inventory has {named}, which site.yml does not set up: run scale_out.yml" in done.stdout, done.stderr
    assert "UNREACHABLE" not in done.stdout


@by_ansible
def test_relay_without_its_bundle_is_refused_before_any_host_is_reached(tmp_path):
    groups = {"broker": ["gate"], "coordinator": ["gate"], "devices": ["pi"]}
    inventory = _inventory(groups, relay_bundle=str(tmp_path / "none.bundle"))
    done = played(tmp_path, inventory, ANSIBLE / "relay.yml")
    assert "the relay has no identity in the fleet above: set relay_bundle" in done.stdout, done.stderr
    assert "UNREACHABLE" not in done.stdout
