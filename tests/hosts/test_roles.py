"""The roles of ansible/ as files: all their variables are documented. And their first look at a host, which takes none."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from fedpatch.coordinator.pki.x509 import Period, make_ca, new_key
from tests.hosts.plays import HERE, ROLES, by_ansible, played, refused, stub, tasks_of

NAMES = sorted(path.name for path in ROLES.iterdir())
REQUIRED = {"fleet_name"}
# Ansible's facts of a Pi 4 with 4 GB.
FACTS = {"architecture": "aarch64", "userspace_bits": "64", "distribution": "Debian", "memtotal_mb": 3796}
FACTS |= {"distribution_version": "12.11", "distribution_major_version": "12"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "old-pi": ({"architecture": "armv7l", "userspace_bits": "32"}, "is a 32 bit armv7l: PyTorch needs a 64 bit system"),
    # Raspberry Pi OS (32-bit) has a kernel of 64 bit.
    "other-card": ({"userspace_bits": "32"}, "is a 32 bit aarch64: PyTorch needs a 64 bit system"),
    "risc": ({"architecture": "riscv64"}, "write Raspberry Pi OS (64-bit) on its card"),
    "bullseye": (
        {"distribution_version": "11.9", "distribution_major_version": "11"},
        "runs Debian 11.9: these roles support Debian and Raspberry Pi OS 12 and 13",
    ),
    "ubuntu": ({"distribution": "Ubuntu"}, "runs Ubuntu 12.11: these roles support Debian"),
    "zero-2": ({"memtotal_mb": 420}, "has 420 MiB of memory, and training needs 850 or more; remove it"),
}


def _defaults(role: str) -> dict:
    return yaml.safe_load((ROLES / role / "defaults" / "main.yml").read_text()) or {}


@pytest.mark.parametrize("role", NAMES)
def test_role_and_its_defaults_are_described(role):
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    options = specs["main"].get("options", {})
    assert set(options) - REQUIRED == set(_defaults(role))
    assert all(option["description"] and option["type"] for option in options.values())
    assert yaml.safe_load((ROLES / role / "meta" / "main.yml").read_text())["galaxy_info"]["description"]


@pytest.mark.parametrize("role", NAMES)
def test_boolean_variables_may_be_texts(role):
    """`-e NAME=true` gives text, which Ansible takes for no condition; so each use of such a setting makes it one."""
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    names = [name for name, option in specs["main"].get("options", {}).items() if option["type"] == "bool"]
    read = [*(ROLES / role).glob("tasks/*.yml"), *(ROLES / role).glob("handlers/*.yml")]
    for name in names:
        used = re.findall(rf"\b{name}\b(.{{7}})", "\n".join(path.read_text() for path in read))
        assert set(used) == {" | bool"}


def test_roles_use_modules_of_ansible_core_only():
    tasks = [*ROLES.rglob("tasks/*.yml"), *ROLES.rglob("handlers/*.yml"), *ROLES.parent.glob("*.yml")]
    named = {
        name
        for path in tasks
        for name in re.findall(r"^\s+([a-z_]+\.[a-z_]+)\.[a-z_]+:", path.read_text(), re.MULTILINE)
    }
    assert named == {"ansible.builtin"}


@pytest.mark.slow
@by_ansible
def test_unsupported_host_is_refused_with_the_reason(tmp_path):
    """32 bit of either kind, another processor, another system, too little memory; what can be one passes."""
    hosts = {name: {**FACTS, **facts} for name, (facts, _) in REFUSED.items()} | {"pi-4": FACTS}
    known = {
        name: {"known": {f"ansible_{key}": value for key, value in facts.items()}} for name, facts in hosts.items()
    }
    groups: dict[str, Any] = {group: {"hosts": {"pi-4": {}}} for group in ("broker", "coordinator")}
    # Text, as `-e NAME=VALUE` gives it.
    least = {"common_min_disk_mib": "0", "common_min_memory_mib": "850"}
    everybody = {"hosts": known, "vars": HERE | least, "children": groups}
    look = tasks_of("common", "checks.yml")
    tasks = [{"ansible.builtin.set_fact": {"cacheable": True}, "args": "{{ known }}"}, look]
    done = played(tmp_path, everybody, {"hosts": "all", "tasks": tasks})
    refusals = refused(done)
    assert set(refusals) == set(REFUSED), done.stdout + done.stderr
    for host, (_, words) in REFUSED.items():
        assert refusals[host].startswith(host) and words in refusals[host]


@pytest.mark.slow
@by_ansible
@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ("fleet_name", "set fleet_name, e.g. kitchen, in group_vars/all/ of the inventory"),
        ("broker", "the inventory has no host in the group broker"),
        ("coordinator", "the inventory has no host in the group coordinator"),
    ],
)
def test_missing_inventory_variable_is_named(tmp_path, lacks, words):
    """Not in Ansible's words for a variable of ours that it could not make."""
    groups: dict[str, Any] = {name: {"hosts": {"hub": {}}} for name in ("broker", "coordinator") if name != lacks}
    variables = {"ansible_connection": "local", **({} if lacks == "fleet_name" else {"fleet_name": "kitchen"})}
    everybody = {"hosts": {"hub": {}}, "vars": variables, "children": groups}
    done = played(tmp_path, everybody, {"hosts": "all", "roles": ["fleet"]})
    assert done.returncode == 2
    assert words in refused(done)["hub"]


@pytest.mark.slow
@by_ansible
def test_a_device_that_has_the_certificate_of_the_record_is_not_enrolled_again(tmp_path):
    """Whatever its number: of one in eight, openssl writes a zero in front that the record has not."""
    numbers = {"odd": 0xABC, "even": 0xAB, "long": 2**158, "zero": 2**154, "zeros": 2**150, "other": 0xDEF}
    hosts: dict[str, Any] = {}
    for name, number in numbers.items():
        identity = tmp_path / name / "agent" / "identity"
        identity.mkdir(parents=True)
        (identity / "client.pem").write_bytes(make_ca("kitchen", new_key(), number, Period(0, 2**32)))
        recorded = {"state": "good", "serial": f"{number:x}" if name != "other" else "ab"}
        hosts[name] = {"fleet_state_dir": str(tmp_path / name), "device_agent_known": recorded}
    groups: dict[str, Any] = {name: {"hosts": {"odd": {}}} for name in ("broker", "coordinator")}
    variables: dict[str, Any] = {"device_agent_is_known": True, "fleet_control_command": "/bin/false"}
    # As `-e device_agent_renew_days=30` gives it.
    variables["device_agent_renew_days"] = "30"
    everybody = {"hosts": hosts, "vars": HERE | variables, "children": groups}
    done = played(tmp_path, everybody, {"hosts": "all", "tasks": [tasks_of("device_agent", "identity.yml")]})
    begun = re.findall(r"^included: \S+/enrol.yml for (.*)$", done.stdout, re.MULTILINE)
    assert begun == ["other"], done.stdout + done.stderr


@pytest.mark.slow
@by_ansible
def test_former_certificates_that_an_interrupted_enrolment_has_left_are_revoked(tmp_path):
    """The device has the newest certificate already."""
    hosts: dict[str, Any] = {}
    for name, others in (("done", 0), ("half", 1)):
        identity = tmp_path / name / "agent" / "identity"
        identity.mkdir(parents=True)
        (identity / "client.pem").write_bytes(make_ca("kitchen", new_key(), 0xABC, Period(0, 2**32)))
        recorded = {"state": "good", "serial": "abc", "others_good": others}
        hosts[name] = {"fleet_state_dir": str(tmp_path / name), "device_agent_known": recorded}
    stub(tmp_path / "fedpatch", f'echo "$@" >>{tmp_path}/calls')
    groups: dict[str, Any] = {name: {"hosts": {"done": {}}} for name in ("broker", "coordinator")}
    variables = {"device_agent_is_known": True, "fleet_control_command": str(tmp_path / "fedpatch")}
    everybody = {"hosts": hosts, "vars": HERE | variables | {"fleet_ca_dir": "/ca"}, "children": groups}
    done = played(tmp_path, everybody, {"hosts": "all", "tasks": [tasks_of("device_agent", "identity.yml")]})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "calls").read_text() == "device revoke half --old --reason=renewed --ca-dir /ca\n"
