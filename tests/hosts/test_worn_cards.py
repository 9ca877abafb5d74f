"""Cards of the field on booted hosts: the broker's database after a power cut, and a device whose card is replaced.

The tests are the life of one fleet, in this order: each finds what those before it left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fedpatch.device_agent.policy.usage import SPENT_WORDS
from tests.hosts import bases
from tests.hosts.bases import BOOKWORM
from tests.hosts.conftest import HUB, PACKAGES, groups, settings
from tests.hosts.control import Control
from tests.hosts.looking import AGENT, await_serving, rounds_of, status, until
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import wheelhouse

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(1800)]

DEVICE, NEW = "pi-1", "card-2"
SETTINGS = "/etc/fedpatch/agent.toml"
STICK, PASSPHRASE = "/media/stick", "/etc/fedpatch/backup.passphrase"
ROUNDS_PER_DAY = 6


@dataclass
class Worn:
    """A hub, a device, and the control host."""

    machines: Machines
    control: Control


def prepare_card(machines: Machines, host: str) -> None:
    """Do what the owner does: mount a stick, and write the passphrase."""
    machines.ssh(host, f"mkdir -p {STICK} /etc/fedpatch && chmod 777 {STICK} && chmod 755 /etc/fedpatch")
    machines.ssh(host, f"umask 077; echo a secret of hers > {PASSPHRASE}")


@pytest.fixture(scope="module")
def worn() -> Iterator[Worn]:
    """A device that may play a few rounds a day, and a coordinator that asks for more."""
    bases.require_tools(BOOKWORM)
    packages, house = bases.packages(BOOKWORM, PACKAGES), wheelhouse(BOOKWORM)
    with Machines({HUB: BOOKWORM, DEVICE: BOOKWORM}) as machines:
        control = Control(machines, machines.folder / "control")
        given = {**settings(control, house), "fleet_package_archives": {BOOKWORM.suite: str(packages)}}
        given["coordinator_settings"] = {"task": "digits", "rounds": 100_000, "round_interval_s": 5, "devices": 1}
        given["coordinator_settings"]["max_failed_rounds"] = 100_000
        given["device_agent_settings"] |= {
            "admission": "preferences",
            "max_rounds_per_day": ROUNDS_PER_DAY,
            "data": "shard:0/1",
        }
        control.settings, control.groups = {**given, "device_agent_backup_dir": STICK}, groups(DEVICE)
        prepare_card(machines, DEVICE)
        control.play("site.yml")
        await_serving(machines, DEVICE)
        yield Worn(machines, control)


def updates(worn: Worn) -> int:
    """Number of updates that the coordinator has got."""
    return sum(one["reported"] for one in rounds_of(worn.machines, HUB))


def has_spent(worn: Worn, host: str) -> bool:
    """Return whether the agent of a host says that the allowance of the day counts as spent."""
    return SPENT_WORDS in worn.machines.ssh(host, AGENT.replace(" --json", ""), check=False)


def test_broker_whose_database_is_damaged_comes_back_with_an_empty_one(worn):
    """As after a power cut: the end of the file is missing. The agent connects again by itself."""
    database = "/var/lib/mosquitto/mosquitto.db"
    worn.machines.ssh(
        HUB, f"systemctl stop mosquitto && truncate -s 40 {database} && systemctl --no-block start mosquitto"
    )
    until(
        lambda: worn.machines.ssh(HUB, "systemctl is-active mosquitto", check=False).strip() == "active",
        "the broker comes back",
    )
    assert worn.machines.ssh(HUB, f"ls {database}.damaged").strip() == f"{database}.damaged"
    await_serving(worn.machines, DEVICE)
    before = updates(worn)
    until(lambda: updates(worn) > before, "a round with an update")


def test_reload_of_the_service_takes_an_edited_limit_without_a_restart(worn):
    """As an owner edits it in an editor; then the settings of before come back, which the next play expects."""
    machines = worn.machines
    process = "systemctl show -p MainPID --value fedpatch-agent"
    before = machines.ssh(DEVICE, process)
    edit = f"""sed -i.before '1i quiet_hours = ["00:00-24:00"]' {SETTINGS}"""
    machines.ssh(DEVICE, f"{edit} && systemctl reload fedpatch-agent")
    until(lambda: "quiet hours" in str(status(machines, DEVICE)["unwilling"]), "the agent declines for its quiet hours")
    machines.ssh(DEVICE, f"mv {SETTINGS}.before {SETTINGS} && systemctl reload fedpatch-agent")
    until(lambda: not status(machines, DEVICE)["unwilling"], "the agent has no quiet hours any more")
    assert machines.ssh(DEVICE, process) == before


def test_timer_writes_backups_that_only_the_passphrase_opens(worn):
    assert worn.machines.ssh(DEVICE, "systemctl is-enabled fedpatch-agent-backup.timer").strip() == "enabled"
    worn.machines.ssh(DEVICE, "systemctl start fedpatch-agent-backup.service")
    [name] = worn.machines.ssh(DEVICE, f"ls {STICK}").split()
    assert name.startswith(f"{DEVICE}-000001-")
    assert worn.machines.ssh(DEVICE, f"stat -c %a {STICK}/{name}").strip() == "600"
    assert worn.machines.ssh(DEVICE, f"grep -c 'PRIVATE KEY' {STICK}/{name}", check=False).strip() == "0"


def test_new_card_is_the_same_device_and_spends_the_allowance_of_no_day_twice(worn):
    """The backup is from the middle of the day; the old card goes on until its allowance is spent, and stays on the network."""
    machines, control = worn.machines, worn.control
    until(
        lambda: "max_rounds_per_day" in str(status(machines, DEVICE)["unwilling"]), "the old card has no allowance left"
    )
    spent = updates(worn)
    # A round whose update was lost with the broker is spent too.
    assert 0 < spent <= ROUNDS_PER_DAY
    [name] = machines.ssh(DEVICE, f"ls {STICK}").split()
    data = machines.ssh(DEVICE, f"base64 -w0 {STICK}/{name}")
    patch = "sha256sum /var/lib/fedpatch/agent/patches/* | cut -d' ' -f1"
    machines.add(NEW, BOOKWORM)
    prepare_card(machines, NEW)
    for part in range(0, len(data), 100_000):
        machines.ssh(NEW, f"printf %s {data[part : part + 100_000]} >> {STICK}/{name}.base64")
    machines.ssh(NEW, f"base64 -d {STICK}/{name}.base64 > {STICK}/{name}; rm {STICK}/{name}.base64")
    control.groups = groups(NEW)
    control.host_settings[NEW] = {"device_agent_id": DEVICE}
    given: dict[str, Any] = {"device_agent_restore_from": f"{STICK}/{name}"}
    control.play("site.yml", **given)
    until(lambda: has_spent(worn, NEW), "the allowance of the new card counts as spent")
    until(
        lambda: not status(machines, DEVICE)["connected"], "the old card, whose certificate is revoked, is locked out"
    )
    assert set(control.play("site.yml", **given).changed.values()) == {0}
    assert machines.ssh(NEW, patch).split()
    # The coordinator hears that the device is there and unwilling, and waits.
    assert status(machines, NEW)["connected"] and has_spent(worn, NEW)
    assert updates(worn) == spent
