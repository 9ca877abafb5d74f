"""A real message bus for a test, with a fake NetworkManager that the test controls (python-dbusmock)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MOCK_PYTHON = "/usr/bin/python3"
NAME = "org.freedesktop.NetworkManager"
MANAGER = "/org/freedesktop/NetworkManager"
MOCK = "org.freedesktop.DBus.Mock"
DEVICE = f"{NAME}.Device"
WIRELESS = f"{DEVICE}.Wireless"
PATIENCE_S = 90.0
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={socket}</listen>
  <servicedir>{services}</servicedir>
  <policy context="default"><allow send_destination="*"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>
"""


@contextlib.contextmanager
def message_bus(folder: Path) -> Iterator[str]:
    """The address of a bus in this folder; `folder/services` describes the services that the bus may start."""
    daemon = shutil.which("dbus-daemon")
    if daemon is None:
        pytest.skip("dbus-daemon is not installed (apt install dbus)")
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    (folder / "services").mkdir(exist_ok=True)
    config = folder / "bus.conf"
    config.write_text(_CONFIG.format(socket=folder / "bus", services=folder / "services"))
    command = [daemon, "--nofork", "--nopidfile", "--print-address", f"--config-file={config}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("unix:"), "dbus-daemon did not start"
            yield address
        finally:
            process.terminate()


class NetworkManager:
    """The NetworkManager on a bus: methods with which a test changes its answers, and the paths of its objects."""

    def __init__(self, bus: str) -> None:
        from jeepney.io.blocking import open_dbus_connection

        if subprocess.run([MOCK_PYTHON, "-c", "import dbusmock"], capture_output=True, check=False).returncode:
            pytest.skip("python-dbusmock is not installed (apt install python3-dbusmock)")
        self.bus = bus
        self.wlan = self.usb = self.point = ""
        self._process = subprocess.Popen(
            [MOCK_PYTHON, "-m", "dbusmock", "--system", "--template", "networkmanager"],
            env={**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus, "PYTHONPATH": "", "PYTHONWARNINGS": ""},
            stdout=subprocess.DEVNULL,
        )
        self._line = open_dbus_connection(bus)
        until = time.monotonic() + PATIENCE_S
        while not self.call("/org/freedesktop/DBus", "org.freedesktop.DBus", "NameHasOwner", "s", NAME):
            assert self._process.poll() is None, "the NetworkManager of the test has ended"
            assert time.monotonic() < until, "the NetworkManager of the test has not come up"
            time.sleep(0.02)

    def call(self, path: str, interface: str, method: str, signature: str, *arguments: object) -> Any:
        """Call a method of the bus itself or of the NetworkManager; return the first value of its reply."""
        from jeepney import DBusAddress, new_method_call
        from jeepney.wrappers import unwrap_msg

        name = "org.freedesktop.DBus" if interface == "org.freedesktop.DBus" else NAME
        to = DBusAddress(path, bus_name=name, interface=interface)
        body = unwrap_msg(
            self._line.send_and_get_reply(new_method_call(to, method, signature, arguments), timeout=PATIENCE_S)
        )
        return body[0] if body else None

    def add_property(self, path: str, interface: str, name: str, signature: str, value: object) -> None:
        self.call(path, MOCK, "AddProperty", "ssv", interface, name, (signature, value))

    def set_property(self, path: str, interface: str, name: str, signature: str, value: object) -> None:
        self.call(path, "org.freedesktop.DBus.Properties", "Set", "ssv", interface, name, (signature, value))

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._line.close()
        self.thaw()
        self._process.terminate()
        self._process.wait()
