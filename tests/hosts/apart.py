"""A fleet whose broker, coordinator and monitoring have a host each: its hosts, inventory, vault and CA."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM, TRIXIE
from tests.hosts.conftest import PACKAGES, settings
from tests.hosts.control import Control, Played
from tests.hosts.looking import ask_prometheus, runs_of, until
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import wheelhouse

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
        return str(runs_of(self.machines, HUB)[0]["id"])

    def serials(self) -> dict[str, str]:
        """Of the certificates that lie on the hosts."""
        command = "openssl x509 -noout -serial -in {}"
        return {host: self.machines.ssh(host, command.format(path)).strip() for host, path in CERTIFICATES.items()}

    def processes(self) -> dict[str, str]:
        command = "systemctl show -p MainPID --value {}"
        return {host: self.machines.ssh(host, command.format(name)).strip() for host, name in SERVICES.items()}

    def scraped(self, query: str) -> set[str]:
        """Who is in Prometheus' answer, once it has one."""
        until(lambda: ask_prometheus(self.machines, WATCH, query), query)
        return {one["metric"]["instance"] for one in ask_prometheus(self.machines, WATCH, query)}


def call(name: str, *words: object, **given: str) -> str:
    """What a command of the control host prints."""
    done = subprocess.run(
        [BIN / name, *map(str, words)], env={**os.environ, **given}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def key_of_vault(control: Control) -> Path:
    """The file with the vault's password."""
    return control.folder / "vault-password"


def prepared(machines: Machines) -> Control:
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
    key_of_vault(control).write_text("correct horse\n")
    control.options = ["--vault-password-file", str(key_of_vault(control))]
    vault = control.inventory / "group_vars" / "all" / "vault.yml"
    vault.write_text(f"vault_token: '{SECRET}'\n")
    call("ansible-vault", "encrypt", *control.options, vault)
    names = [f"--broker-name={name}" for name in (machines.address(BROKER), "localhost", "127.0.0.1")]
    call(
        "fedpatch", "ca", "init", "--fleet=kitchen", "--days=20", f"--ca-dir={control.settings['fleet_ca_dir']}", *names
    )
    return control
