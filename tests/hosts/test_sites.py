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
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM, ROOT, TRIXIE
from tests.hosts.conftest import PACKAGES, settings
from tests.hosts.control import Control, Played
from tests.hosts.looking import (
    COORDINATOR,
    ask_prometheus,
    await_rounds,
    reached,
    runs_of,
    until,
    versions_of,
)
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import BROKEN_COORDINATOR, wheelhouse, with_version

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]

BROKER, HUB, WATCH, FIRST, SECOND = "mqtt", "hub", "watch", "pi-1", "pi-2"
KINDS = {BROKER: TRIXIE, HUB: BOOKWORM, WATCH: TRIXIE, FIRST: BOOKWORM, SECOND: BOOKWORM}
GROUPS = {"broker": [BROKER], "coordinator": [HUB], "monitoring": [WATCH], "devices": [FIRST]}
SERVICES = {BROKER: "mosquitto", HUB: "fedpatch-coordinator", FIRST: "fedpatch-agent"}
CERTIFICATES = {
    BROKER: "/etc/mosquitto/fedpatch/broker.crt",
    HUB: "/etc/fedpatch/coordinator/client.crt",
    FIRST: "/var/lib/fedpatch/agent/identity/client.pem",
}
# What a shell, YAML, JSON and systemd each might take for something else.
UNIQUE = "9f2c41d7"
SECRET = f'tük"s $HOME \\n#{UNIQUE}'
BIN = Path(sysconfig.get_path("scripts"))


@dataclass
class Site:
    """The hosts, the control host, and what the play printed that set all up."""

    machines: Machines
    control: Control
    first: Played

    @property
    def run(self) -> str:
        """The last run of the coordinator."""
        return str(runs_of(self.machines, HUB)[0]["id"])

    def serials(self) -> dict[str, str]:
        """Of the certificates that lie on the hosts."""
        command = "openssl x509 -noout -serial -in {}"
        return {host: self.machines.ssh(host, command.format(path)).strip() for host, path in CERTIFICATES.items()}

    def processes(self) -> dict[str, str]:
        """The main processes of the services."""
        command = "systemctl show -p MainPID --value {}"
        return {host: self.machines.ssh(host, command.format(name)).strip() for host, name in SERVICES.items()}

    def scraped(self, query: str) -> set[str]:
        """Who is in Prometheus' answer, once it has one."""
        until(lambda: ask_prometheus(self.machines, WATCH, query), query)
        return {one["metric"]["instance"] for one in ask_prometheus(self.machines, WATCH, query)}


def _command(name: str, *words: object, **given: str) -> str:
    """What a command of the control host prints."""
    done = subprocess.run(
        [BIN / name, *map(str, words)], env={**os.environ, **given}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _key_of_vault(control: Control) -> Path:
    return control.folder / "vault-password"


def _prepared(machines: Machines) -> Control:
    """A control host with a secret in a vault, and a CA whose certificates for broker and coordinator end in 20 days."""
    kinds = set(KINDS.values())
    house, packages = wheelhouse(BOOKWORM), {kind.suite: str(bases.packages(kind, PACKAGES)) for kind in kinds}
    control = Control(machines, machines.folder / "control")
    control.groups = GROUPS
    control.settings = {
        **settings(control, house),
        "fleet_package_archives": packages,
        "coordinator_settings": {"task": "digits", "rounds": 100_000, "round_interval_s": 2},
        **{f"{one}_environment": {"SITE_TOKEN": "{{ vault_token }}"} for one in ("coordinator", "device_agent")},
        "authority_renew_days": 10,
        "firewall_enabled": True,
        "firewall_clients": [machines.address(device) for device in (FIRST, SECOND)],
    }
    _key_of_vault(control).write_text("correct horse\n")
    control.options = ["--vault-password-file", str(_key_of_vault(control))]
    vault = control.inventory / "group_vars" / "all" / "vault.yml"
    vault.write_text(f"vault_token: '{SECRET}'\n")
    _command("ansible-vault", "encrypt", *control.options, vault)
    names = [f"--broker-name={name}" for name in (machines.address(BROKER), "localhost", "127.0.0.1")]
    _command(
        "fedpatch", "ca", "init", "--fleet=kitchen", "--days=20", f"--ca-dir={control.settings['fleet_ca_dir']}", *names
    )
    return control


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Three hosts and a device; a second device is there to join later."""
    bases.require_tools(*KINDS.values())
    with Machines(KINDS) as machines:
        control = _prepared(machines)
        yield Site(machines, control, control.play("site.yml", "--diff"))


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
    """Devices reach the broker, the coordinator its own listener there, the monitoring host what it reads."""
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


def test_what_is_about_to_expire_is_renewed_and_the_run_goes_on(site):
    """The CA's own too. No service is restarted, the next connections are made with what is new, and the old is taken back."""
    before, processes, run = site.serials(), site.processes(), site.run
    authority = ["--ca-dir", site.control.settings["fleet_ca_dir"]]
    _command("fedpatch", "ca", "renew", "--ca-days=20", *authority)
    site.control.settings.pop("authority_renew_days", None)
    played = site.control.play("site.yml", device_agent_renew_days=10_000)
    renewed = site.serials()
    assert all(renewed[host] != before[host] for host in CERTIFICATES), played.out[-6000:]
    assert site.processes() == processes
    await_rounds(site.machines, HUB)
    site.machines.ssh(BROKER, "systemctl restart mosquitto")
    until(lambda: await_rounds(site.machines, HUB)[-1]["outcome"] == "aggregated", "rounds with new certificates")
    assert (site.run, site.processes()[HUB], site.processes()[FIRST]) == (run, processes[HUB], processes[FIRST])
    told = json.loads(_command("fedpatch", "ca", "show", "--json", *authority))
    ends = {"ca": told["expires_at"], **{one["part"]: one["expires_at"] for one in told["holders"]}}
    assert min(ends.values()) > time.time() + 300 * 86_400
    for part in ("ca", "broker", "coordinator", "device"):
        query = f'fedpatch_certificate_expiry_timestamp_seconds{{certificate="{part}"}} == {ends[part]}'
        assert site.scraped(query) == {f"{site.machines.address(HUB)}:9464"}


def test_a_device_that_joins_takes_part_in_the_run_that_is_under_way(site):
    """One more in the inventory, and site.yml: it has its certificate and its rights, and nothing that was trained is lost."""
    run = site.run
    site.control.groups = {**GROUPS, "devices": [FIRST, SECOND]}
    site.control.play("site.yml")
    until(lambda: len(await_rounds(site.machines, HUB)[-1]["user_accuracies"]) == 2, "both report")
    assert site.run == run


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
    listed = _command("ansible", *both, "online:&version_0_1_0", "--list-hosts", **given)
    assert listed.split() == ["hosts", "(2):", FIRST, SECOND]
    assert _command("ansible", *both, "task_digits", "-m", "ping", **given).count("pong") == 2
    given["FEDPATCH_INVENTORY_DOMAIN"] = ".example.org"
    named = _command("ansible", "-i", registry, FIRST, "-m", "debug", "-a", "var=ansible_host", **given)
    assert f"{FIRST}.example.org" in named


def test_an_encrypted_copy_of_the_ca_is_all_that_a_new_control_host_needs(site, tmp_path):
    """backup.yml with a vault's password leaves its key nowhere in the open; with what is in it site.yml has nothing to do."""
    run, folder = site.run, Path(site.control.settings["fleet_ca_dir"])
    site.control.play(
        "backup.yml", backup_dir=str(tmp_path), backup_vault_password_file=str(_key_of_vault(site.control))
    )
    [copy] = tmp_path.glob("ca-*")
    assert copy.name.endswith(".tar.vault") and copy.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" not in copy.read_bytes()
    await_rounds(site.machines, HUB)
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    decrypt = f"{BIN}/ansible-vault decrypt --vault-password-file {_key_of_vault(site.control)} --output - {copy}"
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
    assert "the coordinator was not well with 0.1.1 and is back at 0.1.0" in " ".join(played.out.split())
    assert versions_of(site.machines, FIRST, HUB, SECOND) == {FIRST: "0.1.1", HUB: "0.1.0", SECOND: "0.1.0"}
    assert site.machines.ssh(SECOND, "ls /opt/fedpatch/versions").split() == ["0.1.0"]
    until(lambda: len(await_rounds(site.machines, HUB)[-1]["user_accuracies"]) == 2, "both report")
    assert site.run == run
