"""A backup of the coordinator's state, of one or two hosts."""

from __future__ import annotations

import os

import pytest

from tests.hosts.plays import HERE, by_ansible, played, stub, tasks_of

SYSTEMCTL = """
case "$*" in
"is-active fedpatch-coordinator.service") echo "$STATE" ;;
*start*|*stop*) echo "$1" >>"$CALLS" ;;
*)
    echo LoadState=loaded
    [ "$(tail -n 1 "$CALLS" 2>/dev/null)" = stop ] && echo ActiveState=inactive || echo ActiveState=active ;;
esac
"""


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_coordinator_that_waits_for_its_restart_runs_after_the_backup_which_names_its_host_and_is_for_its_owner_alone(
    tmp_path,
):
    """During RestartSec, systemd reports the state `activating`."""
    states = {"between": "activating", "standing": "inactive"}
    stub(tmp_path / "bin" / "systemctl", SYSTEMCTL)
    hosts = {}
    for name, state in states.items():
        (tmp_path / name / "coordinator").mkdir(parents=True)
        (tmp_path / name / "coordinator" / "host").write_text(name)
        calls = str(tmp_path / name / "calls")
        hosts[name] = {"fleet_state_dir": str(tmp_path / name), "stubbed": {"STATE": state, "CALLS": calls}}
    moment = {"iso8601_basic_short": "20260102T030405"}
    groups = {group: {"hosts": hosts} for group in ("broker", "coordinator")}
    play = {
        "hosts": "coordinator",
        "environment": {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "STATE": "{{ stubbed.STATE }}",
            "CALLS": "{{ stubbed.CALLS }}",
        },
        "tasks": [
            {"ansible.builtin.set_fact": {"ansible_date_time": moment, "cacheable": True}},
            tasks_of("coordinator", "backup.yml"),
        ],
    }
    done = played(tmp_path, {"vars": HERE | {"backup_dir": str(tmp_path / "copies")}, "children": groups}, play)
    assert done.returncode == 0, done.stdout + done.stderr
    copies = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "copies").iterdir()}
    assert copies == {f"coordinator-kitchen-{name}-20260102T030405.tar.gz": 0o600 for name in states}
    last = {name: (tmp_path / name / "calls").read_text().split()[-1] for name in states}
    assert last == {"between": "start", "standing": "stop"}
