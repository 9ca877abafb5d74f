"""docs/tutorials/ten-pis.md, followed on booted hosts in a copy of this checkout.

Five things differ from a reader's: there are two Pis of each kind instead of five, for hosts with PyTorch take gigabytes of
disk; all run Debian 12, for on this processor PyTorch for Debian 13 brings CUDA along; they have no internet and get Debian's
packages from an archive; their processor is that of this machine; and ssh's configuration has the names of mDNS. The tests are
the life of one fleet, in this order.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM
from tests.hosts.conftest import HUB, PACKAGES
from tests.hosts.control import played_of
from tests.hosts.looking import await_rounds, rounds_of, runs_of, until
from tests.hosts.machines import Machines
from tests.support.paths import ROOT

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(3600)]

PAGE = (ROOT / "docs/tutorials/ten-pis.md").read_text("utf-8")
PIS = ["pi-01", "pi-02", "pi-06", "pi-07"]
EXPECTED_BLOCKS = {"1. The laptop": 1, "3. The inventory": 2, "4. The fleet": 1, "5. Look on": 2, "7. Your own data": 2}
_COMMAND_S = 3000.0


def blocks_of(page: str) -> dict[str, list[str]]:
    """Return the indented blocks of each section of a page."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    found = {one.partition("\n")[0]: re.findall(r"^((?:    .*\n)+)", one, re.MULTILINE) for one in sections}
    return {title: [textwrap.dedent(block) for block in blocks] for title, blocks in found.items() if blocks}


class Reader:
    """A reader with a checkout and a home, who types commands in one shell after another.

    Args:
        machines: The hosts.
    """

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.home = machines.folder / "home"
        self.checkout = machines.folder / "fedpatch"
        self._cwd = self.checkout
        self._copy_checkout()
        ssh = self.home / "bin/ssh"
        ssh.parent.mkdir(parents=True)
        inside = " ".join(machines.inside_control)
        ssh.write_text(f'#!/bin/sh\nexec {inside} {shutil.which("ssh")} -F {self.home}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        self.accept_keys("accept-new")

    @property
    def inventory(self) -> Path:
        return self.checkout / "ansible/inventories/mine"

    def accept_keys(self, mode: str) -> None:
        """Write ssh's configuration: the reader answers yes to an unknown key (accept-new), or is not asked (yes)."""
        own = f"IdentityFile {self.machines.key}\nUserKnownHostsFile {self.home}/known_hosts\nStrictHostKeyChecking {mode}\n"
        names = (f"Host {host}.local\nHostName {self.machines.address(host)}\n" for host in (HUB, *PIS))
        (self.home / "ssh_config").write_text(f"{own}LogLevel ERROR\n{''.join(names)}")

    def types(self, commands: str) -> str:
        """Type commands as they stand on the page, but for placeholders; return their output."""
        typed = commands.replace("ARCH=aarch64", f"ARCH={platform.machine()}").replace(
            "HUB pi-{01..10}.local", " ".join([self.machines.address(HUB), *(f"{host}.local" for host in PIS)])
        )
        # The virtual environment is this checkout's, and is not built anew.
        typed = re.sub(r"^make (?=wheelhouse)", "make -o setup ", typed, flags=re.MULTILINE)
        script = f"set -euo pipefail\n{typed}\npwd > '{self.home}/cwd'\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._cwd,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{typed}\n{done.stdout[-8000:]}"
        self._cwd = Path((self.home / "cwd").read_text().strip())
        return done.stdout

    def edit(self, file: str, change: Any) -> None:
        """Change a file of the inventory; `change` takes its settings and changes them."""
        path = self.inventory / file
        settings = yaml.safe_load(path.read_text())
        change(settings)
        path.write_text(yaml.safe_dump(settings))

    def _copy_checkout(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in (one for one in listed.stdout.splitlines() if one != ".venv" and (ROOT / one).exists()):
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.checkout / name, follow_symlinks=False)
        (self.checkout / ".venv").symlink_to(Path(sys.prefix))

    def _environment(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith(("FEDPATCH_", "PYTEST_"))}
        return given | {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
            # Connections that stay open are known by address alone, and other labs have the same addresses.
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.home / "cp"),
        }


def assert_unchanged(out: str) -> None:
    """Assert that a play of all hosts changed nothing, by its output."""
    played = played_of(0, out)
    assert set(played.changed) == {HUB, *PIS}
    assert (set(played.changed.values()), set(played.failed.values())) == ({0}, {0}), out[-6000:]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """The hosts, as the cards boot; and the reader, who has typed nothing yet."""
    bases.require_tools(BOOKWORM)
    with Machines(dict.fromkeys((HUB, *PIS), BOOKWORM)) as machines:
        yield Reader(machines)


@pytest.fixture(scope="module")
def page() -> dict[str, list[str]]:
    """The commands of the page."""
    return blocks_of(PAGE)


def test_each_block_of_the_page_is_typed_here(page):
    assert {title: len(blocks) for title, blocks in page.items()} == EXPECTED_BLOCKS


def test_one_play_makes_pis_and_a_hub_a_fleet(reader, page):
    """The steps 1, 3 and 4; the commands of step 4 end with the play that sets all up."""
    [laptop] = page["1. The laptop"]
    reader.types(laptop.replace("make setup\n", ""))
    copy, accept = page["3. The inventory"]
    reader.types(copy)
    hosts = reader.inventory / "hosts.yml"
    text = hosts.read_text().replace("192.168.1.10", reader.machines.address(HUB))
    hosts.write_text(text.replace("pi-[01:05]", "pi-[01:02]").replace("pi-[06:10]", "pi-[06:07]"))
    reader.types(accept)
    reader.accept_keys("yes")
    archives = {BOOKWORM.suite: str(bases.packages(BOOKWORM, PACKAGES))}
    offline = reader.inventory / "group_vars/all/without_internet.yml"
    offline.write_text(yaml.safe_dump({"fleet_package_archives": archives}))
    played = played_of(0, reader.types(page["4. The fleet"][0]))
    assert set(played.failed) == {HUB, *PIS}
    assert set(played.failed.values()) == {0}


def test_the_run_begins_with_all_devices_and_reaches_its_target(reader):
    until(lambda: [one["status"] for one in runs_of(reader.machines, HUB)] == ["finished"], "the run ends")
    [run] = runs_of(reader.machines, HUB)
    assert (run["stopped_because"], run["user_accuracy"] >= 0.97) == ("target_ua", True)
    first = rounds_of(reader.machines, HUB)[0]
    assert (first["cohort"], first["needed"]) == (2, 2)


def test_the_commands_of_step_5_have_an_answer(reader, page):
    look, why = page["5. Look on"]
    shown = reader.types(look)
    assert "aggregated" in shown
    assert "pi-01 of fleet kitchen is running" in shown
    answer = reader.types(why)
    assert "external power" in answer
    assert "it would accept work now" in answer


def test_a_repeated_play_changes_nothing(reader, page):
    play = page["4. The fleet"][0].splitlines()[-1]
    assert_unchanged(reader.types(play))


def test_new_settings_begin_a_run_that_a_plug_and_a_reboot_do_not_end(reader, page):
    """Step 6."""

    def longer(settings: dict[str, Any]) -> None:
        del settings["coordinator_settings"]["target_ua"]
        settings["coordinator_settings"] |= {"rounds": 100_000, "round_interval_s": 10}

    reader.edit("group_vars/coordinator.yml", longer)
    reader.types(page["4. The fleet"][0].splitlines()[-1])
    until(lambda: len(runs_of(reader.machines, HUB)) == 2, "a new run begins")
    await_rounds(reader.machines, HUB)
    run = runs_of(reader.machines, HUB)[0]["id"]
    reader.machines.pull_plug("pi-02")
    done = len(rounds_of(reader.machines, HUB))
    until(lambda: len(rounds_of(reader.machines, HUB)) >= done + 4, "rounds are played without pi-02")
    outcomes = [one["outcome"] for one in rounds_of(reader.machines, HUB)[done:]]
    assert outcomes[1:4] == ["aggregated"] * 3  # the first one may be the round that has lost its device
    reader.machines.put_plug("pi-02")
    until(lambda: "pi-02" in await_rounds(reader.machines, HUB)[-1]["user_accuracies"], "pi-02 takes part again")
    assert "patch digits" in reader.types("ssh admin@pi-02.local fedpatch-agent patches")
    reader.machines.reboot(HUB)
    assert await_rounds(reader.machines, HUB)[-1]["outcome"] == "aggregated"
    assert runs_of(reader.machines, HUB)[0]["id"] == run


def test_own_data_replace_the_task_and_leave_a_model_on_each_pi(reader, page):
    """Step 7. The CSV files are those of the laptop's tutorial: one for each Pi, in /srv/readings."""
    programs = reader.checkout / ".venv/bin"
    reader.types(f"cd ~; {programs}/fedpatch-agent new-task room; cd room")
    for seed, host in enumerate(PIS, 1):
        reader.types(
            f"{programs}/python room_task.py {host} {seed} 300; tar -c -C {host} readings.csv | "
            f"ssh admin@{host}.local 'sudo mkdir -p /srv/readings && sudo tar -x -C /srv/readings'"
        )
    wheel, restart = page["7. Your own data"]
    reader.types(f"cd {reader.checkout}/ansible")
    reader.types(wheel)

    def of_coordinator(settings: dict[str, Any]) -> None:
        del settings["coordinator_settings"]["round_interval_s"]
        settings["coordinator_settings"] |= {"task": "room", "private": "all", "rounds": 100}

    def of_devices(settings: dict[str, Any]) -> None:
        settings["device_settings"] |= {"task": "room", "data": "/srv/readings"}

    reader.edit("group_vars/coordinator.yml", of_coordinator)
    reader.edit("group_vars/devices.yml", of_devices)
    reader.types("cd ansible\n" + page["4. The fleet"][0].splitlines()[-1])
    reader.types("cd ..\n" + restart)
    current = "/var/lib/fedpatch/agent/models/room/current"
    for host in PIS:
        until(partial(reader.machines.ssh, host, f"ls {current}/ 2> /dev/null || true"), f"{host} has its own model")
    assert_unchanged(reader.types(page["4. The fleet"][0].splitlines()[-1]))
