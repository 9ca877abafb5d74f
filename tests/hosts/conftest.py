"""A fleet on booted hosts, provisioned by one `ansible-playbook site.yml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM, TRIXIE
from tests.hosts.control import Control, Played
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import wheelhouse

HUB, DEVICES = "hub", ["pi-1", "pi-2"]
KINDS = {HUB: BOOKWORM, "pi-1": BOOKWORM, "pi-2": TRIXIE}
# What the roles install and the bare base lacks; and nftables, of which docs/how-to/fleet.md speaks.
PACKAGES = [
    "mosquitto",
    "nftables",
    "openssl",
    "prometheus",
    "prometheus-node-exporter",
    "python3-venv",
    "systemd-timesyncd",
]


@dataclass
class Fleet:
    """Hosts, the control host, and what became of the first two plays: a dry run on bare hosts, and the one that set all up."""

    machines: Machines
    control: Control
    house: Path
    dry: Played
    first: Played


def settings(control: Control, house: Path) -> dict[str, Any]:
    """Of all hosts of a fleet that trains digits until its target."""
    return {
        "fleet_name": "kitchen",
        "fleet_wheelhouse": str(house),
        "fleet_ca_dir": str(control.folder / "ca"),
        "device_agent_settings": {"task": "digits", "data": "shard:0/2", "admission": "always"},
        "device_agent_wait_s": 600,
        "device_agent_settle_s": 5,
        "coordinator_settings": {"task": "digits", "rounds": 20, "target_ua": 0.9, "round_interval_s": 10},
        "coordinator_settle_s": 5,
        "monitoring_scrape_interval": "1s",
    }


def groups(*devices: str, hub: str = HUB) -> dict[str, list[str]]:
    """One host for all but the devices."""
    return {"broker": [hub], "coordinator": [hub], "monitoring": [hub], "devices": list(devices)}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """One broker, coordinator and monitoring host, and two devices, of which one runs Debian 13."""
    kinds = set(KINDS.values())
    bases.require_tools(*kinds)
    house, packages = wheelhouse(*kinds), {kind.suite: str(bases.packages(kind, PACKAGES)) for kind in kinds}
    with Machines(KINDS) as machines:
        control = Control(machines, machines.folder / "control")
        control.settings = {**settings(control, house), "fleet_package_archives": packages}
        control.groups = groups(*DEVICES)
        dry = control.play("site.yml", "--check", "--diff")
        yield Fleet(machines, control, house, dry, control.play("site.yml"))
