"""Builds the small files in which a kernel describes a machine, below a folder of the test."""

from __future__ import annotations

from pathlib import Path

from fedpatch.device_agent.sensors.collect import FactCollector

BROKER = "192.0.2.7"  # an address for documentation (RFC 5737), which no host has
MAINS = {"type": "Mains", "online": "1"}
BATTERY = {"type": "Battery", "present": "1", "status": "Discharging", "capacity": "71"}
MOUSE = {"type": "Battery", "scope": "Device", "present": "1", "status": "Discharging", "capacity": "3"}

# Each line has another value, so that a fact that is read from a wrong line is wrong.
MEMINFO = """\
MemTotal:        3884400 kB
MemFree:         1200000 kB
MemAvailable:    2097152 kB
Buffers:           70656 kB
Cached:           824320 kB
SwapCached:         5120 kB
Active:           900096 kB
Inactive:         600064 kB
Mlocked:              16 kB
SwapTotal:        204800 kB
SwapFree:         153600 kB
Dirty:               512 kB
AnonPages:        505856 kB
Mapped:           131072 kB
Shmem:             20480 kB
Slab:              92160 kB
CommitLimit:     2147000 kB
Committed_AS:    1310720 kB
CmaTotal:         524288 kB
CmaFree:          261120 kB"""


class Scene:
    """One machine. Every method adds to it, or changes its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_dir = root / "var/lib/agent"
        self.state_dir.mkdir(parents=True)
        (root / "sys/class/power_supply").mkdir(parents=True)
        self.file("proc/loadavg", "0.50 0.20 0.10 1/213 4242")
        self.file("proc/meminfo", MEMINFO)
        self.file("sys/devices/system/cpu/online", "0-3")

    def file(self, path: str, text: str) -> Path:
        """Write a file with this text and the newline that the kernel puts after it."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n", "utf-8")
        return place

    def supply(self, name: str, attributes: dict[str, str]) -> None:
        for attribute, text in attributes.items():
            self.file(f"sys/class/power_supply/{name}/{attribute}", text)

    def zone(self, number: int, kind: str, thousandths: str) -> None:
        self.file(f"sys/class/thermal/thermal_zone{number}/type", kind)
        self.file(f"sys/class/thermal/thermal_zone{number}/temp", thousandths)

    def chip(self, number: int, name: str, **attributes: str) -> None:
        for attribute, text in {"name": name, **attributes}.items():
            self.file(f"sys/class/hwmon/hwmon{number}/{attribute}", text)

    def card(self, name: str, *, kind: str = "1", devtype: str = "", driver: str = "", wireless: bool = False) -> None:
        place = f"sys/class/net/{name}"
        self.file(f"{place}/type", kind)
        self.file(f"{place}/uevent", (f"DEVTYPE={devtype}\n" if devtype else "") + f"INTERFACE={name}\nIFINDEX=3")
        if wireless:
            (self.root / place / "wireless").mkdir()
        if driver:
            (self.root / place / "device").mkdir()
            (self.root / place / "device/driver").symlink_to(f"../../../../bus/usb/drivers/{driver}")

    def above(self, upper: str, *lower: str) -> None:
        """Build an interface from others."""
        for one in lower:
            (self.root / f"sys/class/net/{upper}/lower_{one}").symlink_to(f"../{one}")

    def program(self, name: str, script: str) -> Path:
        """A program of this machine, as a shell script."""
        place = self.file(f"usr/bin/{name}", f"#!/bin/sh\n{script}")
        place.chmod(0o755)
        return place

    def whole(self) -> None:
        """A device with a battery, for which every fact can be measured; it reaches its broker by the loopback."""
        self.supply("mains", MAINS)
        self.supply("battery", {**BATTERY, "status": "Charging"})
        self.zone(0, "cpu-thermal", "48250")
        self.chip(0, "rpi_volt", in0_lcrit_alarm="0")
        self.program("vcgencmd", "echo 'throttled=0x0'")
        self.card("lo", kind="772")
        self.file("run/systemd/timesync/synchronized", "")

    def observer(self, route: str = "eth0", ups: str = "", bus: str | None = None) -> FactCollector:
        """A collector for this machine, whose route to the broker uses this interface."""
        return FactCollector(
            broker_host=BROKER,
            state_dir=self.state_dir,
            root=self.root,
            ups=ups,
            bus=bus,
            interface=lambda: route,
        )
