"""A device with an emulated processor of a Raspberry Pi 4 in a fleet whose other hosts are of this machine's kind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.hosts import bases
from tests.hosts.bases import BOOKWORM, PI_4
from tests.hosts.conftest import HUB, PACKAGES, groups, settings
from tests.hosts.control import Control
from tests.hosts.looking import rounds_of, runs_of
from tests.hosts.machines import Machines
from tests.hosts.wheelhouses import wheelhouse

pytestmark = [pytest.mark.arm64, pytest.mark.slow, pytest.mark.timeout(5400)]

PI = "pi-4"
PATIENCE_S = 1200.0
# The processor features by the kernel or its substitute: bit 8 is for the atomics that a Pi 4 lacks and a Pi 5 has.
HWCAP = "import ctypes; ask = ctypes.CDLL(None).getauxval; ask.restype = ctypes.c_ulong; print(ask(16) >> 8 & 1)"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    bases.require_tools(BOOKWORM, PI_4)
    house = wheelhouse(BOOKWORM, PI_4)
    packages = {kind: {kind.suite: str(bases.packages(kind, PACKAGES))} for kind in (BOOKWORM, PI_4)}
    with Machines({HUB: BOOKWORM, PI: PI_4}) as made:
        made.patience_s = PATIENCE_S
        control = Control(made, made.folder / "control")
        control.patience_s = 3600.0
        control.settings = {**settings(control, house), "fleet_package_archives": packages[BOOKWORM]}
        control.settings["coordinator_settings"] = {
            "task": "digits",
            "rounds": 1,
            "wait_s": PATIENCE_S,
            "recruit_deadline_s": 120,
            "deadline_s": PATIENCE_S,
        }
        control.settings["device_agent_settings"] = {"task": "digits", "data": "shard:0/10", "admission": "always"}
        control.host_settings = {PI: {"fleet_package_archives": packages[PI_4], "device_agent_wait_s": PATIENCE_S}}
        control.groups = groups(PI)
        control.play("site.yml")
        yield made


def test_emulated_device_has_the_platform_of_a_pi_4(machines):
    """Its packages, its Python and its PyTorch are those of aarch64, and the processor has no more than a Cortex-A72."""
    assert machines.ssh(PI, "uname -m; dpkg --print-architecture").split() == ["aarch64", "arm64"]
    assert machines.ssh(PI, f'/opt/fedpatch/current/bin/python -c "{HWCAP}"').strip() == "0"
    environment = machines.ssh(PI, "tr '\\0' '\\n' < /proc/$(systemctl show -p MainPID --value fedpatch-agent)/environ")
    assert "QEMU_CPU=cortex-a72" in environment.splitlines()
    assert machines.ssh(PI, "ls /opt/fedpatch/libraries/*/lib/python3.11/site-packages | grep '^torch-'").strip() == (
        "torch-2.9.1.dist-info"
    )
    installed = machines.ssh(PI, "dpkg-query -W -f '${Package} ${Architecture} ${db:Status-Abbrev}\\n'").splitlines()
    for name in ("openssl", "prometheus-node-exporter", "python3-venv", "systemd-timesyncd"):
        assert f"{name} arm64 ii " in installed


def test_emulated_device_takes_part_in_a_round(machines):
    def journal() -> str:
        return str(machines.ssh(PI, "journalctl --no-pager -n 80 -u fedpatch-agent"))

    give_up_at = time.monotonic() + PATIENCE_S
    while not (found := runs_of(machines, HUB)) or found[0]["status"] == "running":
        assert time.monotonic() < give_up_at, journal()
        time.sleep(1.0)
    (played,) = rounds_of(machines, HUB)
    assert (played["outcome"], played["user_accuracies"].keys()) == ("aggregated", {PI}), journal()
    while "current" not in machines.ssh(PI, "ls /var/lib/fedpatch/agent/models/digits", check=False).split():
        assert time.monotonic() < give_up_at, journal()
        time.sleep(1.0)


def test_every_package_that_the_roles_install_elsewhere_can_be_installed_too(machines):
    """The broker and Prometheus as well, where a Pi is to be the hub."""
    machines.ssh(PI, "DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends mosquitto prometheus")
    assert "mosquitto version 2" in machines.ssh(PI, "mosquitto -h", check=False)
    assert "platform:         linux/arm64" in machines.ssh(PI, "prometheus --version 2>&1")
