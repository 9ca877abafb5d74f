"""A backup of the coordinator's state, of one or two hosts."""

from __future__ import annotations

import os
import re
import tarfile
from typing import Any

import pytest

from tests.hosts.looking import until
from tests.hosts.plays import ANSIBLE, HERE, begun, by_ansible, fleet_of, played, stub, tasks_of

SYSTEMCTL = """
case "$*" in
"is-active fedpatch-coordinator.service") echo "$STATE" ;;
*start*|*stop*) echo "$1" >>"$CALLS" ;;
*)
    echo LoadState=loaded
    [ "$(tail -n 1 "$CALLS" 2>/dev/null)" = stop ] && echo ActiveState=inactive || echo ActiveState=active ;;
esac
"""

MOMENT = {"iso8601_basic_short": "20260102T030405"}
KNOWN: dict[str, Any] = {"ansible.builtin.set_fact": {"ansible_date_time": MOMENT, "cacheable": True}}


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
    groups = {group: {"hosts": hosts} for group in ("broker", "coordinator")}
    play = {
        "hosts": "coordinator",
        "environment": {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "STATE": "{{ stubbed.STATE }}",
            "CALLS": "{{ stubbed.CALLS }}",
        },
        "tasks": [KNOWN, tasks_of("coordinator", "backup.yml")],
    }
    everybody = {"vars": HERE | {"backup_dir": str(tmp_path / "copies")}, "children": groups}
    done = played(tmp_path, everybody, play | {"become": True, "become_method": "su"}, "-vvv")
    assert done.returncode == 0, done.stdout + done.stderr
    # It keeps the whole file in memory.
    assert "/modules/slurp.py" not in done.stdout
    copies = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "copies").iterdir()}
    assert copies == {f"coordinator-kitchen-{name}-20260102T030405.tar.gz": 0o600 for name in states}
    last = {name: (tmp_path / name / "calls").read_text().split()[-1] for name in states}
    assert last == {"between": "start", "standing": "stop"}


@pytest.mark.medium
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_backup_that_does_not_fit_on_the_disk_leaves_nothing_there_and_the_coordinator_runs_again(tmp_path):
    stub(tmp_path / "bin" / "systemctl", SYSTEMCTL)
    stub(
        tmp_path / "bin" / "tar",
        'for one; do case "$one" in --file=*) echo torn >"${one#--file=}" ;; esac; done; exit 2',
    )
    (tmp_path / "hub" / "coordinator").mkdir(parents=True)
    given: dict[str, Any] = {"fleet_state_dir": str(tmp_path / "hub"), "backup_dir": str(tmp_path / "copies")}
    calls = tmp_path / "calls"
    play = {
        "hosts": "coordinator",
        "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "STATE": "active", "CALLS": str(calls)},
        "tasks": [KNOWN, tasks_of("coordinator", "backup.yml")],
    }
    done = played(tmp_path, fleet_of({"hub": {}}, **given), play)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "hub").iterdir()] == ["coordinator"]
    assert calls.read_text().split()[-1] == "start"


@pytest.mark.slow
@by_ansible
def test_paths_of_a_backup_may_begin_with_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.key").write_text("key")
    (tmp_path / "word").write_text("word")
    given: dict[str, Any] = {"fleet_ca_dir": "~/ca", "backup_dir": "~/copies"}
    play = {"hosts": "broker", "tasks": [tasks_of("authority", "backup.yml")]}
    for options in ([], ["-e", "backup_vault_password_file=~/word"]):
        done = played(tmp_path, fleet_of({"hub": {}}, **given), play, *options)
        assert done.returncode == 0, done.stdout + done.stderr
    plain, encrypted = sorted((tmp_path / "copies").iterdir(), key=lambda path: path.suffix)
    with tarfile.open(plain) as packed:
        assert "./ca.key" in packed.getnames()
    assert plain.stat().st_mode & 0o777 == 0o600
    assert [path.name.split("T")[1][6:] for path in (plain, encrypted)] == [".tar", ".tar.vault"]


@pytest.mark.slow
@by_ansible
def test_ca_is_copied_though_the_coordinators_host_is_away(tmp_path):
    """The CA is on the control host."""
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.key").write_text("key")
    # None listens at port 1.
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}
    given: dict[str, Any] = {"fleet_ca_dir": str(tmp_path / "ca"), "backup_dir": str(tmp_path / "copies")}
    done = played(tmp_path, fleet_of({"hub": away}, **given), ANSIBLE / "backup.yml")
    assert re.search(r"^hub .* unreachable=1", done.stdout, re.MULTILINE), done.stdout + done.stderr
    [copy] = (tmp_path / "copies").iterdir()
    with tarfile.open(copy) as packed:
        assert "./ca.key" in packed.getnames()


@pytest.mark.medium
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_coordinator_runs_again_after_a_backup_whose_playbook_was_killed(tmp_path):
    """The task of a lost connection comes to its end on the host, but no other task begins."""
    stub(tmp_path / "bin" / "systemctl", SYSTEMCTL)
    stub(tmp_path / "bin" / "tar", f"touch {tmp_path}/packs; read -r word <{tmp_path}/gate")
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "hub" / "coordinator").mkdir(parents=True)
    calls = tmp_path / "calls"
    given: dict[str, Any] = {"fleet_state_dir": str(tmp_path / "hub"), "backup_dir": str(tmp_path / "copies")}
    play = {
        "hosts": "coordinator",
        "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "STATE": "active", "CALLS": str(calls)},
        "tasks": [KNOWN, tasks_of("coordinator", "backup.yml")],
    }
    with begun(tmp_path, fleet_of({"hub": {}}, **given), play) as playbook:
        until(lambda: (tmp_path / "packs").exists() or playbook.poll() is not None, "it packs the state")
        playbook.kill()
        playbook.wait()
    assert calls.read_text().split()[-1] == "stop"
    (tmp_path / "gate").write_text("go\n")
    until(lambda: calls.read_text().split()[-1] == "start", "the coordinator is started")
