"""A fleet on booted hosts, provisioned by one `ansible-playbook site.yml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hosts import bases
from tests.hosts.control import Control, Played
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import wheelhouse

HUB, DEVICES = "hub", ["pi-1", "pi-2"]
SUITE = "bookworm"
# What the roles install and the bare base lacks.
PACKAGES = ["mosquitto", "openssl", "prometheus", "prometheus-node-exporter", "python3-venv", "systemd-timesyncd"]


@dataclass
class Fleet:
    """Hosts, the control host, and what became of the first two plays: a dry run on bare hosts, and the one that set all up."""

    machines: Machines
    control: Control
    house: Path
    dry: Played
    first: Played


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One broker, coordinator and monitoring host, and two devices."""
    bases.require_tools()
    house, packages = wheelhouse(), bases.packages(SUITE, PACKAGES)
    with Machines({HUB: SUITE, **dict.fromkeys(DEVICES, SUITE)}) as machines:
        control = Control(machines, machines.folder / "control")
        control.settings = {
            "fleet_name": "kitchen",
            "fleet_wheelhouse": str(house),
            "fleet_ca_dir": str(control.folder / "ca"),
            "fleet_package_archives": {SUITE: str(packages)},
            "device_agent_settings": {"task": "digits", "data": "shard:0/2", "admission": "always"},
            "device_agent_settle_s": 5,
            "coordinator_settings": {"task": "digits", "rounds": 20, "target_ua": 0.9, "round_interval_s": 10},
            "coordinator_settle_s": 5,
            "monitoring_scrape_interval": "1s",
        }
        control.groups = {"broker": [HUB], "coordinator": [HUB], "monitoring": [HUB], "devices": DEVICES}
        dry = control.play("site.yml", "--check", "--diff")
        yield Fleet(machines, control, house, dry, control.play("site.yml"))
