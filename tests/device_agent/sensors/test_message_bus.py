"""A message bus without NetworkManager, a silent one, and none at all."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.device_agent.sensors import network_manager
from fedpatch.device_agent.sensors.device_facts import Confidence
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.network_manager import ask_network_manager, bus_address
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.device_agent.sensors.buses import NAME, PATIENCE_S, message_bus
from tests.device_agent.sensors.scenes import Scene

ASSUMED = Confidence.ASSUMED


@pytest.fixture
def scene(tmp_path) -> Scene:
    scene = Scene(tmp_path)
    scene.card("wlan0", devtype="wlan", driver="brcmfmac", wireless=True)
    return scene


@pytest.fixture
def silent() -> Iterator[tuple[str, socket.socket]]:
    """The address of a bus with a silent listener, and its socket."""
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/bus")
        listener.listen()
        yield f"unix:path={folder}/bus", listener


def test_a_bus_without_network_manager_leaves_assumptions(scene):
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, message_bus(Path(folder)) as bus:
        fact = scene.observer("wlan0", bus=bus).observe().metered
    assert (fact.value, fact.confidence) == (False, ASSUMED)


def test_a_bus_that_hangs_leaves_the_costs_unknown(scene, silent, monkeypatch):
    monkeypatch.setattr(network_manager, "LIMIT_S", 0.2)
    fact = scene.observer("wlan0", bus=silent[0]).observe().metered
    assert fact.value is None and "has not answered within" in fact.source


def test_nobody_is_started_for_being_asked(tmp_path):
    """A NetworkManager that its owner does not run stays off, even if the bus could start it."""
    with tempfile.TemporaryDirectory(prefix="bus-") as folder:
        service = Path(folder) / "services" / f"{NAME}.service"
        service.parent.mkdir()
        service.write_text(f"[D-BUS Service]\nName={NAME}\nExec=/usr/bin/touch {tmp_path}/started\n")
        with message_bus(Path(folder)) as bus, pytest.raises(FactUnavailable, match="NetworkManager"):
            ask_network_manager(bus, "wlan0", wireless=True, limit_s=PATIENCE_S)
    assert not (tmp_path / "started").exists()


def test_silent_bus_times_out(silent):
    with pytest.raises(FactUnavailable, match=r"has not answered within 0\.2 s"):
        ask_network_manager(silent[0], "wlan0", wireless=True, limit_s=0.2)


def _drip(listener: socket.socket, over: threading.Event) -> None:
    """Accept the caller, and then send a message of a mebibyte, a byte at a time."""
    line, _ = listener.accept()
    with line:
        line.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        received = b""
        while b"BEGIN\r\n" not in received and (piece := line.recv(4096)):
            received += piece
        line.sendall(b"l\2\1\1" + (1 << 20).to_bytes(4, "little") + bytes(8))
        with contextlib.suppress(OSError):  # until the caller or the test ends
            for _ in range(1000):
                line.sendall(b"\0")
                if over.wait(0.01):
                    break


def test_a_bus_that_never_comes_to_an_end_is_given_up(silent):
    bus, listener = silent
    over = threading.Event()
    dripping = threading.Thread(target=_drip, args=(listener, over))
    dripping.start()
    try:
        with pytest.raises(FactUnavailable, match=r"has not answered within 0\.5 s"):
            ask_network_manager(bus, "wlan0", wireless=True, limit_s=0.5)
    finally:
        over.set()
        dripping.join()


@pytest.mark.parametrize("address", ["tcp:host=x,port=1", "unix:", "nonsense", "unix:tmpdir=/tmp"])
def test_invalid_bus_address_raises_with_the_reason(address):
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    with pytest.raises(FactUnavailable, match="cannot be used"):
        ask_network_manager(address, "wlan0", wireless=True)


def test_without_a_bus_there_are_assumptions(scene):
    facts = scene.observer("wlan0").observe()
    assert (facts.metered.value, facts.metered.confidence) == (False, ASSUMED)
    assert not facts.ssid.known and "NetworkManager does not run" in facts.ssid.source


def test_without_jeepney_only_network_manager_is_not_asked(scene, monkeypatch):
    monkeypatch.setitem(sys.modules, "jeepney", None)
    facts = scene.observer("wlan0").observe()
    assert facts.link.value is LinkKind.WIFI
    assert "jeepney is not installed" in facts.ssid.source


def test_bus_address_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/elsewhere")
    assert bus_address(SysFs(Path("/")), None) == "unix:path=/elsewhere"
    assert bus_address(SysFs(tmp_path), None) == f"unix:path={tmp_path}/run/dbus/system_bus_socket"
    assert bus_address(SysFs(Path("/")), "unix:path=/given") == "unix:path=/given"
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS")
    assert bus_address(SysFs(Path("/")), None) == "unix:path=/run/dbus/system_bus_socket"
