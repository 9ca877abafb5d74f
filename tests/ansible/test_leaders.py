"""The leader of a fleet's rounds: a coordinator, or the relay of a site in its place."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.hosts.plays import ROLES, by_ansible, fleet_of, played, stub

SYSTEMCTL = """
[ "$1 $2" != "show fedpatch-relay.service" ] || [ "$NODE" != first ] || { echo LoadState=not-found; exit; }
case $1 in
show) echo LoadState=loaded; echo ActiveState=active ;;
is-enabled) echo enabled ;;
stop | disable) echo "$1 $2" >>"$CALLS/$NODE" ;;
esac
"""


@pytest.mark.slow
@by_ansible
def test_relay_and_coordinator_that_replace_each_other_do_not_both_run(tmp_path):
    """A coordinator that an operator starts by hand (`coordinator_enabled: false`) is not stopped."""
    stub(tmp_path / "bin" / "systemctl", SYSTEMCTL)
    hosts: dict[str, dict[str, Any]] = {
        "first": {},
        "coordinator": {},
        "relay": {"relay_bundle": "/site-7.bundle"},
        "by-hand": {"coordinator_enabled": False},
    }
    [role] = yaml.safe_load((ROLES / "coordinator" / "tasks" / "main.yml").read_text())
    play = {
        "hosts": "devices",
        "environment": {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "CALLS": str(tmp_path),
            "NODE": "{{ inventory_hostname }}",
        },
        "tasks": [task for task in role["block"] if "ansible.builtin.systemd_service" in task],
    }
    defaults = yaml.safe_load((ROLES / "coordinator" / "defaults" / "main.yml").read_text())
    done = played(tmp_path, fleet_of(hosts, **defaults), play)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = {name: tmp_path / name for name in hosts}
    stopped = {name: path.read_text().splitlines() for name, path in calls.items() if path.exists()}
    assert stopped == {
        "coordinator": ["disable fedpatch-relay.service", "stop fedpatch-relay.service"],
        "relay": ["disable fedpatch-coordinator.service", "stop fedpatch-coordinator.service"],
        "by-hand": ["disable fedpatch-coordinator.service"],
    }
