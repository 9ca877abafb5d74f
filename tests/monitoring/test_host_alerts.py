"""Alerts of hosts by their causes: a real node_exporter reads a made machine, and promtool evaluates the rules on its series.

The machine has the files of a Raspberry Pi and of a PC below a folder (/proc and /sys), and a small disk.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.prometheus import PATIENCE_S, fetch
from tests.monitoring.rule_play import Scrape, complaints, series_name
from tests.support.brokers import HOST, free_port
from tests.support.disks import SmallDisk, small_disk

TARGET = {"job": "node", "instance": "pi-1:9100", "host": "pi-1"}
THERMAL, CORE = "sys/class/thermal/thermal_zone0", "sys/devices/system/cpu/cpu0"
HEALTHY = {
    f"{THERMAL}/type": "cpu-thermal",
    f"{THERMAL}/policy": "step_wise",
    f"{THERMAL}/temp": "61000",
    "sys/class/hwmon/hwmon0/name": "rpi_volt",
    "sys/class/hwmon/hwmon0/in0_lcrit_alarm": "0",
    "sys/class/hwmon/hwmon1/name": "coretemp",
    "sys/class/hwmon/hwmon1/temp1_input": "85000",
    f"{CORE}/thermal_throttle/core_throttle_count": "5",
    f"{CORE}/thermal_throttle/package_throttle_count": "5",
    f"{CORE}/topology/core_id": "0",
    f"{CORE}/topology/physical_package_id": "0",
    "proc/meminfo": "MemTotal: 1000000 kB\nMemFree: 100000 kB\nMemAvailable: 600000 kB",
    "proc/stat": "cpu  1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0",
}


class Machine:
    """The files of a machine below `root`, and the exporter that reads them."""

    def __init__(self, root: Path, disk: SmallDisk) -> None:
        self.root = root
        self.disk = disk
        self.address = f"{HOST}:{free_port()}"

    def reset(self) -> None:
        """Make the machine healthy."""
        for name, text in HEALTHY.items():
            self.write(name, text)
        self.mount("rw")
        self.disk.fill(self.disk_bytes() // 2)

    def disk_bytes(self) -> int:
        """Return the size of the disk."""
        return shutil.disk_usage(self.disk.path).total

    def write(self, name: str, text: str) -> None:
        """Write a file of the kernel."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def mount(self, options: str) -> None:
        """Mount the card at / with these options."""
        self.write("proc/1/mounts", f"/dev/mmcblk0p2 /card ext4 {options},noatime 0 0")

    def scrape(self) -> Scrape:
        """Return the present series as Prometheus stores them."""
        metrics = text_string_to_metric_families(fetch(f"http://{self.address}/metrics"))
        samples = [sample for metric in metrics for sample in metric.samples if sample.name.startswith("node_")]
        return {series_name(one.name, {**TARGET, **one.labels}): one.value for one in samples}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose exporter answers."""
    program = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if program is None:
        pytest.skip("node_exporter is not installed (apt install prometheus-node-exporter)")
    root = tmp_path_factory.mktemp("machine")
    with small_disk(root / "card", "1m") as disk:
        made = Machine(root, disk)
        made.reset()
        options = [f"--path.{name}={root / at}" for name, at in (("procfs", "proc"), ("sysfs", "sys"), ("rootfs", ""))]
        with (
            (root / "log").open("wb") as log,
            subprocess.Popen([program, *options, f"--web.listen-address={made.address}"], stderr=log) as exporter,
        ):
            try:
                _wait(made, exporter)
                yield made
            finally:
                exporter.terminate()


def _wait(machine: Machine, exporter: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert exporter.poll() is None, (machine.root / "log").read_text()
        try:
            machine.scrape()
            return
        except URLError:
            time.sleep(0.05)
    pytest.fail("node_exporter does not answer")


def _file(name: str, text: str) -> Callable[[Machine], None]:
    return lambda machine: machine.write(name, text)


def _full(machine: Machine) -> None:
    machine.disk.fill(machine.disk_bytes() // 20)


def _full_image(machine: Machine) -> None:
    _full(machine)
    machine.mount("ro")


CAUSES: dict[str, tuple[Callable[[Machine], None], set[str]]] = {
    "nothing": (lambda machine: None, set()),
    "processor hot": (_file(f"{THERMAL}/temp", "82000"), {"FedpatchHostHot"}),
    "board hot": (_file("sys/class/hwmon/hwmon1/temp1_input", "95000"), {"FedpatchHostHot"}),
    "weak supply": (_file("sys/class/hwmon/hwmon0/in0_lcrit_alarm", "1"), {"FedpatchHostThrottled"}),
    "memory full": (_file("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 40000 kB"), {"FedpatchHostMemoryLow"}),
    "disk full": (_full, {"FedpatchHostDiskFull"}),
    "image full that is mounted read-only": (_full_image, set()),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", CAUSES)
def test_cause_at_a_host_fires_exactly_its_alerts(machine, tmp_path, name):
    cause, alerts = CAUSES[name]
    machine.reset()
    healthy = machine.scrape()
    cause(machine)
    assert complaints(tmp_path, [(60, healthy), (80, machine.scrape())], alerts) == ""


@pytest.mark.medium
@pytest.mark.parametrize(("each_minute", "alerts"), [(0, set()), (4, {"FedpatchHostThrottled"})])
def test_processor_that_is_slowed_down_again_and_again_fires_its_alert(machine, tmp_path, each_minute, alerts):
    machine.reset()
    phases = []
    for minute in range(45):
        machine.write(f"{CORE}/thermal_throttle/core_throttle_count", str(5 + minute * each_minute))
        phases.append((2, machine.scrape()))
    assert complaints(tmp_path, phases, alerts) == ""
