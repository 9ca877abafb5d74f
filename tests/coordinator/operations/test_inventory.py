"""`fedpatch inventory`: what Ansible makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.operations.inventory import inventory
from fedpatch.coordinator.pki.certificate_authority import DEVICE, Authority
from fedpatch.coordinator.rounds.run_records import DeviceInfo
from fedpatch.coordinator.storage.migrations import COUNTERS
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError
from tests.coordinator.device_sightings import seen


def _device(name: str, fleet: str = "kitchen", *, online: bool = True, version: str = "0.1.0") -> DeviceInfo:
    counts: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
    seen: dict[str, Any] = {"first_seen": 1.0, "last_seen": 2.0, "last_reason": ""}
    return DeviceInfo(
        id=name, fleet=fleet, online=online, version=version, tasks=("digits", "my-task"), **counts, **seen
    )


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Three devices of a fleet; one of them was revoked."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        for name, online in (("pi-1", True), ("pi-2", False), ("pi-3", True)):
            seen(registry, name, fleet="kitchen", now=1.0, online=True, version="0.1.0", tasks=["digits"])
            seen(registry, name, fleet="kitchen", now=2.0, online=online, version="0.1.0", tasks=["digits"])
    with Authority.create(tmp_path / "ca", "kitchen", now=1e9) as authority:
        authority.issue(DEVICE, "pi-3", now=1e9)
        authority.revoke(DEVICE, "pi-3", now=1e9 + 1)
    return tmp_path


def test_devices_are_grouped_by_what_is_known_of_them():
    """State, fleet, version and tasks are groups, with names that Ansible takes."""
    made = inventory([_device("a"), _device("b", online=False, version="0.2.0")])
    groups = {name: group["hosts"] for name, group in made.items() if name != "_meta"}
    assert groups["devices"] == groups["fleet_kitchen"] == groups["task_my_task"] == ["a", "b"]
    assert (groups["online"], groups["offline"]) == (["a"], ["b"])
    assert (groups["version_0_1_0"], groups["version_0_2_0"]) == (["a"], ["b"])


def test_a_domain_makes_ids_addresses():
    """Without one, no address is given, so that another inventory's stands."""
    assert inventory([_device("a")], domain=".local")["_meta"]["hostvars"]["a"]["ansible_host"] == "a.local"
    assert "ansible_host" not in inventory([_device("a")])["_meta"]["hostvars"]["a"]


def test_one_id_in_two_fleets_is_refused():
    """Two devices would be one host."""
    with pytest.raises(UsageError, match="--fleet"):
        inventory([_device("a", "kitchen"), _device("a", "garage")])


def test_list_is_the_registry_without_those_revoked(fedpatch, state_dir):
    """`--list` prints one document, with the variables of all hosts in it."""
    told = json.loads(fedpatch("inventory", "--list", "--state-dir", state_dir).out)
    assert told["devices"]["hosts"] == ["pi-1", "pi-2"]
    assert told["offline"]["hosts"] == ["pi-2"]
    assert told["_meta"]["hostvars"]["pi-1"]["fedpatch_tasks"] == ["digits"]


def test_host_is_what_list_says_of_it(fedpatch, state_dir):
    """`--host` prints the variables of one host."""
    told = json.loads(fedpatch("inventory", "--list", "--state-dir", state_dir).out)
    one = json.loads(fedpatch("inventory", "--host", "pi-1", "--state-dir", state_dir).out)
    assert one == told["_meta"]["hostvars"]["pi-1"]


@pytest.mark.parametrize("options", [(), ("--list", "--host", "pi-1"), ("--host", "pi-9"), ("--host", "pi-3")])
def test_what_cannot_be_answered_is_a_mistake(fedpatch, state_dir, options):
    """Neither option, both, and a host that is unknown or revoked: exit code 2, and nothing on stdout."""
    ended = fedpatch("inventory", *options, "--state-dir", state_dir)
    assert (ended.code, ended.out) == (2, "")


def test_ansible_reads_it(state_dir, tmp_path):
    """ansible-inventory takes a script that calls the command, and finds groups and variables."""
    ansible_inventory = Path(sysconfig.get_path("scripts"), "ansible-inventory")
    if not ansible_inventory.exists():
        pytest.skip("ansible-core is not installed (pip install 'fedpatch[dev]')")
    script = tmp_path / "devices"
    program = "import sys; from fedpatch.cli import main; sys.argv[0] = 'fedpatch'; main()"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" inventory --state-dir {state_dir} "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}  # Ansible insists on both
    told = subprocess.run(
        [ansible_inventory, "-i", script, "--graph"], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert "@offline:\n  |  |--pi-2" in told
