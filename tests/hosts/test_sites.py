"""A fleet whose broker, coordinator and monitoring have a host each, and what an operator does with it after the first play.

The tests are the life of one fleet, in this order: each finds what those before it left. Hosts without PyTorch run Debian 13,
the others Debian 12.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import bases
from tests.hosts.apart import (
    BIN,
    BROKER,
    CERTIFICATES,
    FIRST,
    GROUPS,
    HUB,
    KINDS,
    SECOND,
    SECRET,
    UNIQUE,
    WATCH,
    Site,
    call,
    key_of_vault,
    prepared,
)
from tests.hosts.bases import BOOKWORM
from tests.hosts.looking import (
    COORDINATOR,
    ask_prometheus,
    await_rounds,
    reached,
    rounds_of,
    runs_of,
    until,
    versions_of,
)
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import BROKEN_COORDINATOR, with_version
from tests.support.paths import ROOT
from tests.support.runbooks import COMMANDS, COMMANDS_OF_HOSTS, ENDLESS, WITHOUT_SERVICE

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]

ANEW, THIRD = "hub-2", "pi-3"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Three hosts and a device; a second device is there to join later."""
    bases.require_tools(*KINDS.values())
    with Machines(KINDS) as machines:
        control = prepared(machines)
        yield Site(machines, control, control.play("site.yml", "--diff"))


def await_both(site: Site) -> None:
    """Wait for a round from now on in which both devices have reported."""
    until(lambda: len(await_rounds(site.machines, HUB)[-1]["user_accuracies"]) == 2, "both report")


def test_broker_coordinator_and_monitoring_may_have_a_host_each(site):
    """One site.yml: certificates and addresses follow, a round is played, and Prometheus reads coordinator and hosts."""
    assert set(site.first.failed) == {BROKER, HUB, WATCH, FIRST}
    assert set(site.first.failed.values()) == {0}
    [played, *_] = await_rounds(site.machines, HUB)
    assert (played["outcome"], played["reported"]) == ("aggregated", 1)
    hosts = {f"{site.machines.address(host)}:9100" for host in site.first.failed}
    assert site.scraped('up{job="fedpatch"} == 1') == {f"{site.machines.address(HUB)}:9464"}
    every = 'up{job="node",host!=""} == 1'  # what Debian's own configuration reads has no host, and is remembered for minutes
    assert site.scraped(f"{every} and on() count({every}) == {len(hosts)}") == hosts
    for host in (BROKER, WATCH):
        assert site.machines.ssh(host, "ls /opt/fedpatch").strip() == ""


def test_each_port_is_open_to_those_alone_who_need_it(site):
    ports = (22, 8883, 8884, 9100)
    assert reached(site.machines, FIRST, BROKER, ports) == [22, 8883]
    assert reached(site.machines, HUB, BROKER, ports) == [22, 8884]
    assert reached(site.machines, WATCH, BROKER, ports) == [22, 9100]
    assert reached(site.machines, FIRST, HUB, (22, 9100, 9464)) == [22]
    assert reached(site.machines, WATCH, HUB, (22, 9100, 9464)) == [22, 9100, 9464]


def test_a_second_play_changes_nothing_and_renews_nothing(site):
    """Certificates with 20 days left are good enough where ten are wanted."""
    before = site.serials()
    again = site.control.play("site.yml")
    assert set(again.changed.values()) == {0}, again.out[-6000:]
    assert site.serials() == before


def test_a_secret_of_a_vault_reaches_the_services_and_nobody_else(site):
    """By their environment, whatever characters it is of; it is in no output, no journal, and no file that others may read."""
    for host, process in site.processes().items():
        held = site.machines.ssh(host, f"tr '\\0' '\\n' < /proc/{process}/environ").splitlines()
        assert (f"SITE_TOKEN={SECRET}" in held) == (host != BROKER)
        assert UNIQUE not in site.machines.ssh(host, "journalctl --no-pager")
    assert UNIQUE not in site.first.out
    found = site.machines.ssh(FIRST, f"grep -rl {UNIQUE} /etc /opt/fedpatch/versions /var/lib/fedpatch /tmp /home")
    assert found.split() == ["/etc/fedpatch/agent.env"]
    assert site.machines.ssh(FIRST, "stat -c '%a %U' /etc/fedpatch/agent.env").split() == ["600", "root"]
    site.control.options, closed = [], site.control.options
    played = site.control.play("site.yml", check=False)
    site.control.options = closed
    assert (played.code != 0, dict(played.changed)) == (True, {})


def test_expiring_certificates_are_renewed_during_a_run(site):
    """The CA's own too. No service is restarted, the next connections are made with what is new, and the old is taken back."""
    before, processes, run = site.serials(), site.processes(), site.run
    authority = ["--ca-dir", site.control.settings["fleet_ca_dir"]]
    call("fedpatch", "ca", "renew", "--ca-days=20", *authority)
    site.control.settings.pop("authority_renew_days", None)
    played = site.control.play("site.yml", device_agent_renew_days=10_000)
    renewed = site.serials()
    assert all(renewed[host] != before[host] for host in CERTIFICATES), played.out[-6000:]
    assert site.processes() == processes
    await_rounds(site.machines, HUB)
    site.machines.ssh(BROKER, "systemctl restart mosquitto")
    until(lambda: await_rounds(site.machines, HUB)[-1]["outcome"] == "aggregated", "rounds with new certificates")
    assert (site.run, site.processes()[HUB], site.processes()[FIRST]) == (run, processes[HUB], processes[FIRST])
    shown = json.loads(call("fedpatch", "ca", "show", "--json", *authority))
    ends = {"ca": shown["expires_at"], **{one["part"]: one["expires_at"] for one in shown["holders"]}}
    assert min(ends.values()) > time.time() + 300 * 86_400
    for part in ("ca", "broker", "coordinator", "device"):
        query = f'fedpatch_certificate_expiry_timestamp_seconds{{certificate="{part}"}} == {ends[part]}'
        assert site.scraped(query) == {f"{site.machines.address(HUB)}:9464"}


def test_a_device_that_joins_takes_part_in_the_run_that_is_under_way(site):
    """One more in the inventory, and site.yml: it has its certificate and its rights, and nothing that was trained is lost."""
    run = site.run
    site.control.groups = {**GROUPS, "devices": [FIRST, SECOND]}
    site.control.play("site.yml")
    await_both(site)
    assert site.run == run


def alerts(site: Site, state: str = "pending|firing") -> set[str]:
    """The alerts whose condition holds, or only those that it holds for long enough."""
    found = ask_prometheus(site.machines, WATCH, f'ALERTS{{alertname=~"Fedpatch.*",alertstate=~"{state}"}}')
    return {one["metric"]["alertname"] for one in found}


def test_no_alert_begins_in_a_healthy_run(site):
    until(lambda: not alerts(site), "the alerts of what was played before end")
    begun = time.monotonic()
    await_rounds(site.machines, HUB, 5)
    lately = f'ALERTS{{alertname=~"Fedpatch.*"}}[{time.monotonic() - begun:.0f}s]'
    assert ask_prometheus(site.machines, WATCH, f"count_over_time({lately})") == []


@pytest.mark.parametrize(
    ("alert", "state", "host", "service"),
    [
        ("FedpatchCoordinatorDown", "firing", HUB, "fedpatch-coordinator"),
        ("FedpatchBrokerDisconnected", "firing", BROKER, "mosquitto"),
        ("FedpatchDeviceOffline", "pending", FIRST, "fedpatch-agent"),
        ("FedpatchHostDown", "pending", SECOND, "prometheus-node-exporter"),
    ],
)
def test_alert_begins_when_a_service_ends_and_ends_when_it_is_back(site, alert, state, host, service):
    """The two that fire do so after two minutes; the others are given half an hour and ten minutes."""
    run = site.run
    site.machines.ssh(host, f"systemctl stop {service}")
    until(lambda: alert in alerts(site, state), f"{alert} begins")
    site.machines.ssh(host, f"systemctl start {service}")
    until(lambda: not alerts(site), f"{alert} ends, and no other is left")
    await_both(site)
    assert site.run == run


def test_each_command_of_the_runbooks_succeeds_as_it_stands_on_the_host_that_it_is_for(site):
    lines = sorted({*COMMANDS, *COMMANDS_OF_HOSTS} - WITHOUT_SERVICE - ENDLESS)
    failed = {}
    for line in lines:
        host = HUB if line.startswith("fedpatch ") or "coordinator" in line else WATCH if "promtool" in line else FIRST
        typed = line.replace("DEVICE", SECOND).replace("TEXT", "broken")
        out = site.machines.ssh(host, f"({typed}) 2>&1; echo $?")
        if out.split()[-1] != "0":
            failed[host, line] = out
    assert failed == {}
    assert len(lines) > 15
    await_both(site)


def test_a_device_that_is_drained_is_asked_again_once_it_is_resumed(site):
    """`fedpatch devices drain`, on the host of a coordinator at work, which heeds it also when it is started again."""
    words = COORDINATOR.format(f"devices {{}} {SECOND} --json")
    site.machines.ssh(HUB, f"sudo -u fedpatch {words.format('drain')}")
    until(lambda: await_rounds(site.machines, HUB)[-1]["cohort"] == 1, "it is asked no more")
    site.machines.ssh(HUB, "systemctl restart fedpatch-coordinator")
    assert list(await_rounds(site.machines, HUB, 2)[-1]["user_accuracies"]) == [FIRST]
    site.machines.ssh(HUB, f"sudo -u fedpatch {words.format('resume')}")
    until(lambda: await_rounds(site.machines, HUB)[-1]["cohort"] == 2, "it is asked again")


def test_the_registry_is_an_inventory_for_ansible(site, tmp_path):
    """Beside one's own, which knows the addresses; it is asked of the coordinator's host over ssh."""
    ssh = tmp_path / "ssh"
    options = f"-i {site.machines.key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    ssh.write_text(f'#!/bin/sh\nexec {" ".join(site.machines.inside_control)} {shutil.which("ssh")} {options} "$@"\n')
    ssh.chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "FEDPATCH_COORDINATOR": f"{site.machines.user(HUB)}@{site.machines.address(HUB)}",
        "FEDPATCH_INVENTORY_DOMAIN": "",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path / "cp"),
    }
    registry = ROOT / "ansible" / "inventories" / "registry" / "devices"
    both = ["-i", str(site.control.inventory), "-i", str(registry), *site.control.options]
    listed = call("ansible", *both, "online:&version_0_1_0", "--list-hosts", **given)
    assert listed.split() == ["hosts", "(2):", FIRST, SECOND]
    assert call("ansible", *both, "task_digits", "-m", "ping", **given).count("pong") == 2
    given["FEDPATCH_INVENTORY_DOMAIN"] = ".example.org"
    named = call("ansible", "-i", registry, FIRST, "-m", "debug", "-a", "var=ansible_host", **given)
    assert f"{FIRST}.example.org" in named


def test_an_encrypted_copy_of_the_ca_is_all_that_a_new_control_host_needs(site, tmp_path):
    """backup.yml with a vault's password leaves its key nowhere in the open; with what is in it site.yml has nothing to do."""
    run, folder = site.run, Path(site.control.settings["fleet_ca_dir"])
    site.control.play(
        "backup.yml", backup_dir=str(tmp_path), backup_vault_password_file=str(key_of_vault(site.control))
    )
    [copy] = tmp_path.glob("ca-*")
    assert copy.name.endswith(".tar.vault") and copy.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" not in copy.read_bytes()
    await_rounds(site.machines, HUB)
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    decrypt = f"{BIN}/ansible-vault decrypt --vault-password-file {key_of_vault(site.control)} --output - {copy}"
    subprocess.run(["sh", "-ec", f"{decrypt} | tar -x -C {shlex.quote(str(folder))}"], check=True)
    again = site.control.play("site.yml")
    assert set(again.changed.values()) == {0}, again.out[-6000:]
    assert site.run == run


def test_a_version_whose_coordinator_is_not_well_goes_back_with_it(site, tmp_path):
    """The canary has it by then; the coordinator returns to the one before, its run goes on, and no other device is touched."""
    run = site.run
    house = Path(site.control.settings["fleet_wheelhouse"])
    broken = with_version(house, "0.1.1", tmp_path / "broken", BROKEN_COORDINATOR)
    played = site.control.play("upgrade.yml", check=False, fleet_wheelhouse=str(broken))
    assert played.code != 0
    assert f"{HUB} was not healthy with 0.1.1 and has returned to 0.1.0" in " ".join(played.out.split())
    assert versions_of(site.machines, FIRST, HUB, SECOND) == {FIRST: "0.1.1", HUB: "0.1.0", SECOND: "0.1.0"}
    assert site.machines.ssh(SECOND, "ls /opt/fedpatch/versions").split() == ["0.1.0"]
    await_both(site)
    assert site.run == run


def test_a_coordinator_that_is_lost_is_restored_beside_its_broker(site, tmp_path):
    """At another address: the broker lets that one in, Prometheus reads it, and the run goes on."""
    run = site.run
    site.control.play("backup.yml", backup_dir=str(tmp_path))
    [copy] = tmp_path.glob("coordinator-*")
    done = len(rounds_of(site.machines, HUB))
    site.machines.remove(HUB)
    site.machines.add(ANEW, BOOKWORM)
    site.control.groups = {**site.control.groups, "coordinator": [ANEW]}
    site.control.play("restore.yml", restore_from=str(copy))
    until(lambda: len(rounds_of(site.machines, ANEW)) > done, "the run goes on")
    assert runs_of(site.machines, ANEW)[0]["id"] == run
    assert reached(site.machines, ANEW, BROKER, (22, 8883, 8884, 9100)) == [22, 8884]
    scraped = {f"{site.machines.address(ANEW)}:9464"}
    until(lambda: site.scraped('up{job="fedpatch"} == 1') == scraped, "Prometheus reads the new one")


def test_a_device_is_retired_under_the_name_that_it_has_in_the_fleet(site):
    """`device_agent_id`, where that is another than what the inventory calls its host."""
    site.machines.add(THIRD, BOOKWORM)
    site.control.host_settings[THIRD] = {"device_agent_id": "kitchen-three"}
    site.control.groups = {**site.control.groups, "devices": [FIRST, SECOND, THIRD]}
    site.control.settings["firewall_clients"].append(site.machines.address(THIRD))
    site.control.play("site.yml")
    until(lambda: "kitchen-three" in await_rounds(site.machines, ANEW)[-1]["user_accuracies"], "it reports")
    assert "kitchen-three" in site.machines.ssh(BROKER, "cat /etc/mosquitto/fedpatch/fedpatch.acl")
    site.control.play("retire.yml", retired=THIRD)
    assert "kitchen-three" not in site.machines.ssh(BROKER, "cat /etc/mosquitto/fedpatch/fedpatch.acl")
    assert site.machines.ssh(THIRD, "ls -d /var/lib/fedpatch 2>/dev/null || true").strip() == ""
    until(
        lambda: set(await_rounds(site.machines, ANEW)[-1]["user_accuracies"]) == {FIRST, SECOND}, "it is asked no more"
    )
