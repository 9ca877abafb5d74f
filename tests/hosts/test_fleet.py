"""Bare hosts become a training fleet, and stay one: the playbooks of ansible/ on booted hosts with a systemd of their own.

The tests are the life of one fleet, in this order: each finds what those before it left.
"""

from __future__ import annotations

import json
import re
import shlex
import time

import pytest

from tests.hosts.bases import TRIXIE
from tests.hosts.conftest import DEVICES, HUB, Fleet, groups
from tests.hosts.looking import ask_prometheus, await_serving, reached, rounds_of, runs_of, until, versions_of
from tests.hosts.wheelhouses import BROKEN_AGENT, with_version

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]


def _output(fleet: Fleet, command: str) -> str:
    return fleet.machines.ssh(HUB, command, check=False)


def _knock(fleet: Fleet, device: str) -> str:
    """Whether the broker lets in who shows the certificate that was copied to /root/kept."""
    hub = fleet.machines.address(HUB)
    program = f"""
import socket, ssl
context = ssl.create_default_context(cafile="/root/kept/ca.crt")
context.load_cert_chain("/root/kept/client.pem")
plain = socket.create_connection(("{hub}", 8883), 60)
try:
    with context.wrap_socket(plain, server_hostname="{hub}") as one:
        one.sendall(bytes.fromhex("101000044d5154540402003c0004") + b"{device}")
        print("let in" if one.recv(4) == bytes.fromhex("20020000") else "refused")
except (ssl.SSLError, ConnectionResetError):
    print("refused")
"""
    return fleet.machines.ssh(device, f"python3 -c {shlex.quote(program)}").strip()


def _reached(fleet: Fleet) -> list[int]:
    """Ports of the hub to which a device can connect, of those of ssh, the broker and node_exporter."""
    return reached(fleet.machines, DEVICES[0], HUB, (22, 8883, 9100))


def test_dry_run_on_bare_hosts_lists_changes_and_makes_none(fleet):
    """`--check --diff` works where nothing of ours is yet."""
    assert all(changed > 0 for changed in fleet.dry.changed.values())
    assert "vm.swappiness" in fleet.dry.out


def test_one_play_makes_bare_hosts_a_fleet_that_trains(fleet):
    """After site.yml every agent runs by systemd, and the run that the coordinator began reaches its target."""
    assert set(fleet.first.failed.values()) == {0}
    for device in DEVICES:
        assert fleet.machines.ssh(device, "systemctl is-enabled fedpatch-agent").strip() == "enabled"
    await_serving(fleet.machines, *DEVICES)
    until(
        lambda: runs_of(fleet.machines, HUB) and runs_of(fleet.machines, HUB)[0]["status"] == "finished", "the run ends"
    )
    assert runs_of(fleet.machines, HUB)[0]["stopped_because"] == "target_ua"
    assert runs_of(fleet.machines, HUB)[0]["user_accuracy"] >= 0.9


def test_prometheus_saw_the_run_and_sees_every_host(fleet):
    """Prometheus scraped the coordinator while the run went on, and reads processor, memory and disk of each host."""
    assert ask_prometheus(fleet.machines, HUB, 'max_over_time(up{job="fedpatch"}[1h])')[0]["value"][1] == "1"
    hosts = {
        found["metric"]["host"]
        for found in ask_prometheus(fleet.machines, HUB, 'up{job="node"} == 1')
        if "host" in found["metric"]
    }
    assert hosts == {HUB, *DEVICES}


def test_a_firewall_closes_what_is_ours_to_all_but_those_who_need_it(fleet):
    """Devices reach the broker and nothing else of ours, the monitoring host each node_exporter; other rules change nothing."""
    hub = fleet.machines.address(HUB)
    assert _reached(fleet) == [22, 8883, 9100]
    refused = fleet.control.play("site.yml", "--limit", HUB, check=False, firewall_enabled=True)
    assert f"port 8883 of {HUB} would be closed to all: set firewall_clients" in " ".join(refused.out.split())
    assert _reached(fleet) == [22, 8883, 9100]
    fleet.control.settings |= {"firewall_enabled": True, "firewall_clients": [f"{hub.rpartition('.')[0]}.0/24"]}
    fleet.control.play("site.yml")
    assert _reached(fleet) == [22, 8883]
    since = f'count(up{{job="node"}} == 1 and timestamp(up) > {time.time()})'
    everybody = [str(len((HUB, *DEVICES)))]
    until(
        lambda: [one["value"][1] for one in ask_prometheus(fleet.machines, HUB, since)] == everybody,
        "Prometheus reads each host",
    )
    fleet.machines.ssh(HUB, "systemctl start nftables; systemctl reload nftables")
    assert _reached(fleet) == [22, 8883]


def test_a_firewall_comes_back_where_it_was_flushed_and_goes_where_it_is_not_wanted(fleet):
    """site.yml loads rules that somebody flushed, and takes them back from a host that is to have none."""
    fleet.machines.ssh(HUB, "systemctl stop nftables")
    assert _reached(fleet) == [22, 8883, 9100]
    fleet.control.play("site.yml", "--limit", DEVICES[0], firewall_enabled=False)
    assert fleet.machines.ssh(DEVICES[0], "nft list tables; ls /etc/fedpatch") == "agent.env\nagent.toml\n"
    again = fleet.control.play("site.yml")
    assert {host for host, changed in again.changed.items() if changed} == {HUB, DEVICES[0]}
    assert _reached(fleet) == [22, 8883]


def test_a_second_play_changes_nothing(fleet):
    again = fleet.control.play("site.yml")
    assert set(again.changed.values()) == {0}, again.out[-6000:]


def test_a_dry_run_on_the_fleet_finds_nothing_to_do(fleet):
    """`--check --diff` on provisioned hosts neither fails nor wants anything."""
    dry = fleet.control.play("site.yml", "--check", "--diff")
    assert set(dry.changed.values()) == {0}, dry.out[-6000:]


def _doctor(fleet: Fleet, host: str) -> dict[str, tuple[str, str]]:
    """Return verdict and remedy of each check of the doctor, as the operator types it on a host."""
    program = "fedpatch" if host == HUB else "fedpatch-agent"
    answer = json.loads(fleet.machines.ssh(host, f"{program} doctor --json", check=False))
    return {one["name"]: (one["verdict"], one["mend"]) for one in answer["findings"]}


def test_a_play_after_the_remedies_of_the_doctor_changes_nothing(fleet):
    """Each fault is found, the command in its remedy ends it, and the roles do not set anything back."""
    state = "/var/lib/fedpatch"
    faults = (
        (HUB, "state_dir", f"chmod 777 {state}/coordinator"),
        (HUB, "broker_port", "systemctl stop mosquitto"),
        (DEVICES[0], "state_dir", f"chmod 777 {state}/agent"),
        (DEVICES[0], "certificate", f"chmod 644 {state}/agent/identity/client.pem"),
        (DEVICES[1], "stored", f"chown -R root: {state}/agent/patches"),
    )
    for host, check, fault in faults:
        fleet.machines.ssh(host, fault)
        verdict, remedy = _doctor(fleet, host)[check]
        assert verdict in ("warn", "fail"), (fault, remedy)
        # A comma within a word belongs to the command, one at the end of a word to the sentence.
        command = re.search(r"(?:chmod|chown|systemctl)(?: (?:[^,;()`\s]|,(?=\S))+)+", remedy)
        assert command, (fault, remedy)
        fleet.machines.ssh(host, command[0])
        assert _doctor(fleet, host)[check][0] == "ok", (fault, command[0])
    again = fleet.control.play("site.yml")
    assert set(again.changed.values()) == {0}, again.out[-6000:]


def test_secrets_stay_out_of_logs(fleet):
    """No key that the plays carried about is in what they printed, nor in a journal."""
    key = fleet.machines.ssh(
        DEVICES[0], "sed -n '/PRIVATE KEY/{n;p;q}' /var/lib/fedpatch/agent/identity/client.pem"
    ).strip()
    assert len(key) > 40
    assert key not in fleet.first.out + fleet.dry.out
    for host in (HUB, *DEVICES):
        assert key not in fleet.machines.ssh(host, "journalctl --no-pager")


def test_hosts_come_back_after_a_reboot(fleet):
    """After a reboot of each host, agents serve again without anybody's help; a run that came to its end is left alone."""
    before = runs_of(fleet.machines, HUB)
    for host in (*DEVICES, HUB):
        fleet.machines.reboot(host)
    await_serving(fleet.machines, *DEVICES)
    assert fleet.machines.ssh(HUB, "systemctl is-active mosquitto prometheus").split() == ["active", "active"]
    assert _reached(fleet) == [22, 8883]
    words = "journalctl --no-pager --boot -u fedpatch-coordinator"
    until(
        lambda: f"run {before[0]['id']} with these settings has come to its end" in _output(fleet, words), "it is over"
    )
    assert runs_of(fleet.machines, HUB) == before


def test_a_host_that_cannot_be_one_is_refused_in_a_sentence(fleet):
    """Too little memory and a wrong processor end the play before any change, with a remedy."""
    for wrong, words in (
        ({"common_min_memory_mib": 10_000_000}, "training needs 10000000"),
        ({"common_architectures": ["riscv64"]}, "write Raspberry Pi OS (64-bit) on its card"),
        ({"common_debian_versions": ["99"]}, "these roles support Debian and Raspberry Pi OS 99"),
    ):
        played = fleet.control.play("site.yml", "--limit", DEVICES[0], check=False, **wrong)
        assert (played.code, played.changed) == (2, {DEVICES[0]: 0})
        assert words in " ".join(played.out.split())


def test_a_version_that_is_not_well_stops_at_the_canary(fleet, tmp_path):
    """The canary of a broken version goes back to the one before and serves again; nobody else is touched."""
    broken = with_version(fleet.house, "0.1.1", tmp_path / "broken", BROKEN_AGENT)
    played = fleet.control.play("upgrade.yml", check=False, fleet_wheelhouse=str(broken))
    assert played.code != 0
    assert f"{DEVICES[0]} was not healthy with 0.1.1 and has returned to 0.1.0" in " ".join(played.out.split())
    assert set(versions_of(fleet.machines, HUB, *DEVICES).values()) == {"0.1.0"}
    assert played.changed.get(DEVICES[1], 0) == 0
    await_serving(fleet.machines, *DEVICES)


def test_a_sound_version_reaches_every_host(fleet, tmp_path):
    """Canary, coordinator, batches; a device whose former version is gone keeps its identity and its patch."""
    sound = with_version(fleet.house, "0.2.0", tmp_path / "sound")
    fleet.control.settings["fleet_wheelhouse"] = str(sound)
    fleet.control.play("upgrade.yml")
    assert set(versions_of(fleet.machines, HUB, *DEVICES).values()) == {"0.2.0"}
    await_serving(fleet.machines, *DEVICES)
    for host in (HUB, *DEVICES):
        assert fleet.machines.ssh(host, "ls /opt/fedpatch/libraries | wc -l").strip() == "1"


def test_more_than_one_minor_version_is_not_left_out(fleet, tmp_path):
    far = with_version(fleet.house, "0.4.0", tmp_path / "far")
    played = fleet.control.play("upgrade.yml", check=False, fleet_wheelhouse=str(far))
    assert played.code != 0
    assert "more than one minor version away" in " ".join(played.out.split())
    assert set(played.changed.values()) == {0}


def test_a_revoked_device_is_locked_out(fleet):
    """retire.yml takes its certificate back: the broker refuses it, nothing of ours stays on it, nor is installed again."""
    kept = "/var/lib/fedpatch/agent/identity"
    fleet.machines.ssh(DEVICES[1], f"cp -a {kept} /root/kept")
    assert _knock(fleet, DEVICES[1]) == "let in"
    fleet.control.play("retire.yml", retired=DEVICES[1], retire_reason="stolen")
    paths = "/var/lib/fedpatch /etc/fedpatch /usr/local/bin/fedpatch-agent /usr/bin/prometheus-node-exporter"
    left = f"ls -d {paths} 2>/dev/null; getent passwd fedpatch; getent group fedpatch; true"
    assert fleet.machines.ssh(DEVICES[1], left).strip() == ""
    assert _knock(fleet, DEVICES[1]) == "refused"
    await_serving(fleet.machines, DEVICES[0])
    again = fleet.control.play("site.yml", "--limit", DEVICES[1], check=False)
    assert f"{DEVICES[1]} was revoked (stolen)" in " ".join(again.out.split())
    assert fleet.machines.ssh(DEVICES[1], "ls /opt/fedpatch").strip() == ""


def test_the_coordinator_moves_to_a_fresh_host(fleet, tmp_path):
    """With a backup, a bare host, here of Debian 13, goes on with the run that was under way when the old one was lost."""
    fleet.control.groups = {**fleet.control.groups, "devices": DEVICES[:1]}
    fleet.control.settings["coordinator_settings"] = {"task": "digits", "rounds": 100_000, "round_interval_s": 2}
    former = len(runs_of(fleet.machines, HUB))
    fleet.control.play("site.yml")
    until(
        lambda: len(runs_of(fleet.machines, HUB)) > former and len(rounds_of(fleet.machines, HUB)) >= 2,
        "two rounds of another run",
    )
    run = runs_of(fleet.machines, HUB)[0]["id"]
    fleet.machines.reboot(HUB)
    done = len(rounds_of(fleet.machines, HUB))
    until(lambda: len(rounds_of(fleet.machines, HUB)) > done, "the run goes on after a reboot")
    fleet.control.play("backup.yml", backup_dir=str(tmp_path))
    copy = next(tmp_path.glob("coordinator-kitchen-*.tar.gz"))
    assert (next(tmp_path.glob("ca-kitchen-*.tar")).stat().st_mode & 0o777) == 0o600
    assert runs_of(fleet.machines, HUB)[0]["id"] == run
    done = len(rounds_of(fleet.machines, HUB))
    fleet.machines.remove(HUB)
    fleet.machines.add("hub-2", TRIXIE)
    fleet.control.groups = groups(*DEVICES[:1], hub="hub-2")
    fleet.control.play("restore.yml", restore_from=str(copy))
    assert runs_of(fleet.machines, "hub-2")[0]["id"] == run
    until(lambda: len(rounds_of(fleet.machines, "hub-2")) > done, "the run goes on")
