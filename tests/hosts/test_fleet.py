"""Bare hosts become a training fleet, and stay one: the playbooks of ansible/ on booted hosts with a systemd of their own.

The tests are the life of one fleet, in this order: each finds what those before it left.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest

from tests.hosts.conftest import DEVICES, HUB, Fleet

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 180.0
COORDINATOR = "/opt/fedpatch/current/bin/fedpatch {} --state-dir /var/lib/fedpatch/coordinator"
AGENT = "/opt/fedpatch/current/bin/fedpatch-agent status --json --state-dir /var/lib/fedpatch/agent"


def _runs(fleet: Fleet, host: str = HUB) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(fleet.machines.ssh(host, COORDINATOR.format("runs --json")) or "[]")
    return found


def _status(fleet: Fleet, device: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(fleet.machines.ssh(device, AGENT, check=False) or "{}")
    return told


def _await_serving(fleet: Fleet, *devices: str) -> None:
    for device in devices:
        give_up_at = time.monotonic() + PATIENCE_S
        while not (told := _status(fleet, device)).get("running") or not told.get("connected"):
            if time.monotonic() > give_up_at:
                journal = fleet.machines.ssh(device, "journalctl --no-pager -n 50 -u fedpatch-agent")
                raise TimeoutError(f"{device} does not serve: {told}\n{journal}")
            time.sleep(0.5)


def _ask_prometheus(fleet: Fleet, query: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    program = f"import urllib.request as web; print(web.urlopen('{url}').read().decode())"
    answer = json.loads(fleet.machines.ssh(HUB, f'python3 -c "{program}"'))
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _until(fits: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not fits():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"never: {what}")
        time.sleep(0.5)


def test_a_dry_run_on_bare_hosts_says_what_would_be_done_and_does_nothing(fleet):
    """`--check --diff` works where nothing of ours is yet."""
    assert all(changed > 0 for changed in fleet.dry.changed.values())
    assert "vm.swappiness" in fleet.dry.out


def test_one_play_makes_bare_hosts_a_fleet_that_trains(fleet):
    """After site.yml every agent runs by systemd, and the run that the coordinator began reaches its target."""
    assert set(fleet.first.failed.values()) == {0}
    for device in DEVICES:
        assert fleet.machines.ssh(device, "systemctl is-enabled fedpatch-agent").strip() == "enabled"
    _await_serving(fleet, *DEVICES)
    _until(lambda: _runs(fleet) and _runs(fleet)[0]["status"] == "finished", "the run ends")
    assert _runs(fleet)[0]["stopped_because"] == "target_ua"
    assert _runs(fleet)[0]["user_accuracy"] >= 0.9


def test_prometheus_saw_the_run_and_sees_every_host(fleet):
    """Prometheus scraped the coordinator while the run went on, and reads processor, memory and disk of each host."""
    assert _ask_prometheus(fleet, 'max_over_time(up{job="fedpatch"}[1h])')[0]["value"][1] == "1"
    hosts = {
        found["metric"]["host"] for found in _ask_prometheus(fleet, 'up{job="node"} == 1') if "host" in found["metric"]
    }
    assert hosts == {HUB, *DEVICES}


def test_a_second_play_changes_nothing(fleet):
    """site.yml says what should be, so that doing it again does nothing."""
    again = fleet.control.play("site.yml")
    assert set(again.changed.values()) == {0}, again.out[-6000:]


def test_a_dry_run_on_the_fleet_finds_nothing_to_do(fleet):
    """`--check --diff` on provisioned hosts neither fails nor wants anything."""
    dry = fleet.control.play("site.yml", "--check", "--diff")
    assert set(dry.changed.values()) == {0}, dry.out[-6000:]


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
    """After a reboot of each host, agents and coordinator are at work again without anybody's help."""
    for host in (*DEVICES, HUB):
        fleet.machines.reboot(host)
    _await_serving(fleet, *DEVICES)
    assert fleet.machines.ssh(HUB, "systemctl is-active mosquitto prometheus").split() == ["active", "active"]
    _until(
        lambda: fleet.machines.ssh(HUB, "systemctl is-active fedpatch-coordinator").strip() == "active", "a coordinator"
    )
