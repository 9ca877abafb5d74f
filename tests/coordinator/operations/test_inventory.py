"""`fedpatch inventory`: the devices of a fleet for Ansible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.operations.inventory import inventory
from fedpatch.coordinator.pki.certificate_authority import DEVICE, Authority
from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.storage.database.migrations import COUNTERS
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError
from tests.coordinator.registry_builders import seen


def _device(name: str, fleet: str = "kitchen", *, online: bool = True, version: str = "0.1.0") -> DeviceInfo:
    counts: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
    seen: dict[str, Any] = {"first_seen": 1.0, "last_seen": 2.0, "last_reason": ""}
    return DeviceInfo(
        id=name, fleet=fleet, online=online, version=version, tasks=("digits", "my-task"), **counts, **seen
    )


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """State directory with three devices of a fleet, one of them revoked."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        for name, online in (("pi-1", True), ("pi-2", False), ("pi-3", True)):
            seen(registry, name, fleet="kitchen", now=1.0, online=True, version="0.1.0", tasks=["digits"])
            seen(registry, name, fleet="kitchen", now=2.0, online=online, version="0.1.0", tasks=["digits"])
    with Authority.create(tmp_path / "ca", "kitchen", now=1e9) as authority:
        authority.issue(DEVICE, "pi-3", now=1e9)
        authority.revoke(DEVICE, "pi-3", now=1e9 + 1)
    return tmp_path


def test_inventory_groups_devices_by_state_fleet_version_and_task():
    made = inventory([_device("a"), _device("b", online=False, version="0.2.0")])
    groups = {name: group["hosts"] for name, group in made.items() if name != "_meta"}
    assert groups["devices"] == groups["fleet_kitchen"] == groups["task_my_task"] == ["a", "b"]
    assert (groups["online"], groups["offline"]) == (["a"], ["b"])
    assert (groups["version_0_1_0"], groups["version_0_2_0"]) == (["a"], ["b"])


def test_groups_of_presence_exist_without_members():
    """Ansible warns of a pattern such as !offline whose group does not exist."""
    made = inventory([_device("a")])
    assert (made["online"]["hosts"], made["offline"]["hosts"]) == (["a"], [])


def test_relays_of_sites_are_no_devices():
    """Their hosts are in the inventories of their sites: upgrade.yml of the hub could not reach them."""
    made = inventory([_device("a"), replace(_device("site-7"), relay=True)])
    assert {name: made[name]["hosts"] for name in ("devices", "relays", "online")} == {
        "devices": ["a"],
        "relays": ["site-7"],
        "online": ["a", "site-7"],
    }


def test_inventory_has_addresses_with_a_domain_only():
    found = [inventory([_device("a")], **given)["_meta"]["hostvars"]["a"] for given in ({}, {"domain": ".local"})]
    assert [one.get("ansible_host") for one in found] == [None, "a.local"]


def test_inventory_refuses_one_id_in_two_fleets():
    with pytest.raises(UsageError, match="--fleet"):
        inventory([_device("a", "kitchen"), _device("a", "garage")])


def test_inventory_list_and_host_have_devices_that_are_not_revoked(fedpatch, state_dir):
    listed = json.loads(fedpatch("inventory", "--list", "--state-dir", state_dir).out)
    assert listed["devices"]["hosts"] == ["pi-1", "pi-2"]
    assert listed["offline"]["hosts"] == ["pi-2"]
    assert listed["_meta"]["hostvars"]["pi-1"]["fedpatch_tasks"] == ["digits"]
    one = json.loads(fedpatch("inventory", "--host", "pi-1", "--state-dir", state_dir).out)
    assert one == listed["_meta"]["hostvars"]["pi-1"]


@pytest.mark.parametrize("options", [(), ("--list", "--host", "pi-1"), ("--host", "pi-9"), ("--host", "pi-3")])
def test_inventory_of_an_unknown_host_or_wrong_options_is_a_usage_error(fedpatch, state_dir, options):
    ended = fedpatch("inventory", *options, "--state-dir", state_dir)
    assert (ended.code, ended.out) == (2, "")


@pytest.mark.medium
def test_ansible_reads_the_inventory(state_dir, tmp_path):
    ansible_inventory = Path(sysconfig.get_path("scripts"), "ansible-inventory")
    if not ansible_inventory.exists():
        pytest.skip("ansible-core is not installed (pip install 'fedpatch[dev]')")
    script = tmp_path / "devices"
    program = "import sys; from fedpatch.cli import main; sys.argv[0] = 'fedpatch'; main()"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" inventory --state-dir {state_dir} "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}  # Ansible insists on both
    listed = subprocess.run(
        [ansible_inventory, "-i", script, "--graph"], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert "@offline:\n  |  |--pi-2" in listed
