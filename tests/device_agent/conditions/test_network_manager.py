"""A real message bus, and a NetworkManager on it that says what it is told to say."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from device_agent.conditions import bounded, network_manager
from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.network_manager import Told, ask_network_manager
from device_agent.conditions.tree import Tree
from device_agent.conditions.wireless import bus_address
from device_agent.facts import Confidence, LinkKind
from tests.device_agent.conditions.buses import (
    DEVICE,
    MANAGER,
    MOCK,
    NAME,
    PATIENCE_S,
    WIRELESS,
    NetworkManager,
    message_bus,
)
from tests.device_agent.conditions.scenes import Scene

MEASURED, ASSUMED, UNKNOWN = Confidence.MEASURED, Confidence.ASSUMED, Confidence.UNKNOWN
ACTIVATED = 100
SSID = "Käthes Netz"
# As the real one refuses an interface that is none of its own.
FIND_OR_REFUSE = f"""ret = self.get_device_by_ip_iface(self, args[0])
if args[0] == "broken0":
    raise dbus.exceptions.DBusException("no", name="{NAME}.PermissionDenied")
if ret is None:
    raise dbus.exceptions.DBusException("No device found for the requested iface.", name="{NAME}.UnknownDevice")
"""


@pytest.fixture(scope="module")
def bus():
    """The address of a bus on which services can be."""
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, message_bus(Path(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def manager(bus):
    """A NetworkManager with a wireless and a wired device."""
    found = NetworkManager(bus)
    found.wlan = wlan = found.call(MANAGER, MOCK, "AddWiFiDevice", "ssi", "wlan0", "wlan0", ACTIVATED)
    found.point = point = found.call(
        MANAGER, MOCK, "AddAccessPoint", "ssssuuuyu", wlan, "ap0", SSID, "00:23:F8:7E:12:BB", 2, 2425, 5400, 82, 0
    )
    found.add_property(wlan, WIRELESS, "ActiveAccessPoint", "o", point)
    found.add_property(wlan, DEVICE, "Metered", "u", 2)
    found.usb = usb = found.call(MANAGER, MOCK, "AddEthernetDevice", "ssi", "usb0", "usb0", ACTIVATED)
    found.add_property(usb, DEVICE, "Metered", "u", 4)
    found.call(MANAGER, MOCK, "AddMethod", "sssss", NAME, "GetDeviceByIpIface", "s", "o", FIND_OR_REFUSE)
    yield found
    found.close()


@pytest.fixture
def scene(tmp_path) -> Scene:
    """A machine with a wireless card, and a phone at its USB port."""
    scene = Scene(tmp_path)
    scene.card("wlan0", devtype="wlan", driver="brcmfmac", wireless=True)
    scene.card("usb0", driver="rndis_host")
    return scene


def _ask(manager: NetworkManager, interface: str = "wlan0", *, wireless: bool = True) -> Told:
    return ask_network_manager(manager.bus, interface, wireless=wireless, limit_s=PATIENCE_S)


def test_the_network_and_its_costs_are_those_of_the_devices_own_interface(manager, scene):
    """What is said of one interface does not count for another."""
    wireless = scene.observer("wlan0", bus=manager.bus).observe()
    assert (wireless.link.value, wireless.ssid.value, wireless.metered.value) == (LinkKind.WIFI, SSID, False)
    assert wireless.ssid.confidence is wireless.metered.confidence is MEASURED
    phone = scene.observer("usb0", bus=manager.bus).observe()
    assert (phone.link.value, phone.ssid.value) == (LinkKind.CELLULAR, None)
    assert (phone.metered.value, phone.metered.confidence) == (True, ASSUMED)


@pytest.mark.parametrize(
    ("code", "metered", "confidence"),
    [(0, False, ASSUMED), (1, True, MEASURED), (2, False, MEASURED), (3, True, ASSUMED), (4, False, ASSUMED)],
)
def test_the_owners_word_and_network_managers_guess(manager, scene, code, metered, confidence):
    """A hotspot of a phone is guessed to be metered; what the owner set is known."""
    manager.set_property(manager.wlan, DEVICE, "Metered", "u", code)
    fact = scene.observer("wlan0", bus=manager.bus).observe().metered
    assert (fact.value, fact.confidence) == (metered, confidence)


def test_a_name_in_bytes_that_are_no_text(manager):
    """Networks may be called anything."""
    manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "ay", b"caf\xe9")
    try:
        assert _ask(manager).ssid == r"caf\xe9"
    finally:
        manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "ay", SSID.encode())


def test_a_card_that_has_joined_no_network(manager, scene):
    """It has no network's name, and the reason is told."""
    manager.set_property(manager.wlan, WIRELESS, "ActiveAccessPoint", "o", "/")
    try:
        fact = scene.observer("wlan0", bus=manager.bus).observe().ssid
        assert (fact.value, fact.confidence) == (None, UNKNOWN)
        assert "has joined" in fact.source
    finally:
        manager.set_property(manager.wlan, WIRELESS, "ActiveAccessPoint", "o", manager.point)


def test_an_interface_that_network_manager_does_not_know(manager, scene):
    """Its costs are what is usual of such a link; its name comes from iw."""
    scene.card("wlan9", devtype="wlan", wireless=True)
    scene.program("iw", r"printf 'Connected to 00:23 (on wlan9)\n\tSSID: caf\\xe9: no 2\n\tfreq: 2425\n'")
    facts = scene.observer("wlan9", bus=manager.bus).observe()
    assert (facts.metered.value, facts.metered.confidence) == (False, ASSUMED)
    assert (facts.ssid.value, facts.ssid.source) == (r"caf\xe9: no 2", "iw")


def test_a_network_manager_that_refuses_leaves_the_costs_unknown(manager, scene):
    """What it will not say, it may know."""
    scene.card("broken0", devtype="wlan", wireless=True)
    fact = scene.observer("broken0", bus=manager.bus).observe().metered
    assert fact.value is None and "PermissionDenied" in fact.source


def test_a_bus_without_network_manager_leaves_assumptions(scene):
    """Nobody has that name, so nobody knows better than what is usual."""
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, message_bus(Path(folder)) as bus:
        fact = scene.observer("wlan0", bus=bus).observe().metered
    assert (fact.value, fact.confidence) == (False, ASSUMED)


def test_a_bus_that_hangs_leaves_the_costs_unknown(scene, monkeypatch):
    """It is there, and only its answer is not."""
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    monkeypatch.setattr(network_manager, "LIMIT_S", 0.2)
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/bus")
        listener.listen()
        fact = scene.observer("wlan0", bus=f"unix:path={folder}/bus").observe().metered
    assert fact.value is None and "has not answered within" in fact.source


@pytest.mark.parametrize(("signature", "lie"), [("s", "yes"), ("b", True), ("d", 2.0), ("as", ["a"])])
def test_an_answer_of_another_type_is_no_answer(manager, signature, lie):
    """Whoever has that name on the bus."""
    manager.set_property(manager.usb, DEVICE, "Metered", signature, lie)
    try:
        with pytest.raises(CannotTell, match="no number"):
            _ask(manager, "usb0", wireless=False)
    finally:
        manager.set_property(manager.usb, DEVICE, "Metered", "u", 4)


def test_a_name_of_another_type_is_no_answer(manager):
    """A number is no network's name."""
    manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "d", 0.5)
    try:
        with pytest.raises(CannotTell, match="cannot be read"):
            _ask(manager)
    finally:
        manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "ay", SSID.encode())


def test_a_network_manager_that_hangs_is_given_up(manager, scene, monkeypatch):
    """The link is still known; what it costs is not guessed, since NetworkManager may know better, but asked again."""
    observer = scene.observer("wlan0", bus=manager.bus)
    manager.set_property(manager.wlan, DEVICE, "Metered", "u", 1)
    monkeypatch.setattr(network_manager, "LIMIT_S", 0.3)
    manager.freeze()
    try:
        facts = observer.observe()
        assert facts.link.value is LinkKind.WIFI
        assert not facts.ssid.known and "has not answered" in facts.ssid.source
        assert not facts.metered.known and "has not answered" in facts.metered.source
    finally:
        manager.thaw()
    assert _ask(manager) == Told(1, SSID)


def test_a_network_manager_that_hangs_delays_one_look(manager, scene, monkeypatch):
    """After it, the network's name is known without it; and once it answers again, so is what the link costs."""
    monkeypatch.setattr(bounded, "QUICK_S", 0.1)
    monkeypatch.setattr(network_manager, "LIMIT_S", 0.3)
    scene.program("iw", r"printf '\tSSID: home\n'")
    observer = scene.observer("wlan0", bus=manager.bus)
    manager.set_property(manager.wlan, DEVICE, "Metered", "u", 1)
    manager.freeze()
    try:
        assert not observer.observe().metered.known
        monkeypatch.setattr(network_manager, "LIMIT_S", PATIENCE_S)
        facts = observer.observe()  # it has its whole limit again, and is not waited for
        assert facts.ssid.value == "home"
        assert not facts.metered.known and "NetworkManager has not answered for" in facts.metered.source
    finally:
        manager.thaw()
    until = time.monotonic() + PATIENCE_S
    while not (fact := observer.observe().metered).known:
        assert time.monotonic() < until, "a NetworkManager that answers again is not believed"
        time.sleep(0.02)
    assert (fact.value, fact.confidence) == (True, MEASURED)


def test_nobody_is_started_for_being_asked(tmp_path):
    """A NetworkManager that its owner does not run stays off, even where the bus could start it."""
    with tempfile.TemporaryDirectory(prefix="bus-") as folder:
        service = Path(folder) / "services" / f"{NAME}.service"
        service.parent.mkdir()
        service.write_text(f"[D-BUS Service]\nName={NAME}\nExec=/usr/bin/touch {tmp_path}/started\n")
        with message_bus(Path(folder)) as bus, pytest.raises(CannotTell, match="NetworkManager"):
            ask_network_manager(bus, "wlan0", wireless=True, limit_s=PATIENCE_S)
    assert not (tmp_path / "started").exists()


def test_a_bus_that_says_nothing_is_given_up():
    """Somebody who only listens at the bus's address."""
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/bus")
        listener.listen()
        with pytest.raises(CannotTell, match=r"has not answered within 0\.2 s"):
            ask_network_manager(f"unix:path={folder}/bus", "wlan0", wireless=True, limit_s=0.2)


def _drip(listener: socket.socket, over: threading.Event) -> None:
    """Lets its caller in, and then says a message of a mebibyte, a byte at a time."""
    line, _ = listener.accept()
    with line:
        line.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        heard = b""
        while b"BEGIN\r\n" not in heard and (piece := line.recv(4096)):
            heard += piece
        line.sendall(b"l\2\1\1" + (1 << 20).to_bytes(4, "little") + bytes(8))
        with contextlib.suppress(OSError):  # until the caller gives up, or the test does
            for _ in range(1000):
                line.sendall(b"\0")
                if over.wait(0.01):
                    break


def test_a_bus_that_never_comes_to_an_end_is_given_up():
    """Every byte is in time, but the whole is not."""
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/bus")
        listener.listen()
        dripping = threading.Thread(target=_drip, args=(listener, over))
        dripping.start()
        try:
            with pytest.raises(CannotTell, match=r"has not answered within 0\.5 s"):
                ask_network_manager(f"unix:path={folder}/bus", "wlan0", wireless=True, limit_s=0.5)
        finally:
            over.set()
            dripping.join()


@pytest.mark.parametrize("address", ["tcp:host=x,port=1", "unix:", "nonsense", "unix:tmpdir=/tmp"])
def test_an_address_that_is_none_says_so(address):
    """$DBUS_SYSTEM_BUS_ADDRESS may say anything."""
    pytest.importorskip("jeepney", reason="jeepney is not installed (pip install 'fedpatch[agent]')")
    with pytest.raises(CannotTell, match="cannot be used"):
        ask_network_manager(address, "wlan0", wireless=True)


def test_without_a_bus_there_are_assumptions(scene):
    """As in a container."""
    facts = scene.observer("wlan0").observe()
    assert (facts.metered.value, facts.metered.confidence) == (False, ASSUMED)
    assert not facts.ssid.known and "NetworkManager does not run" in facts.ssid.source


def test_without_jeepney_only_network_manager_is_not_asked(scene, monkeypatch):
    """It is a dependency of the agent only for this."""
    monkeypatch.setitem(sys.modules, "jeepney", None)
    facts = scene.observer("wlan0").observe()
    assert facts.link.value is LinkKind.WIFI
    assert "jeepney is not installed" in facts.ssid.source


def test_the_systems_bus_is_where_the_environment_says(monkeypatch, tmp_path):
    """But not below a root of a test's own."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/elsewhere")
    assert bus_address(Tree(Path("/")), None) == "unix:path=/elsewhere"
    assert bus_address(Tree(tmp_path), None) == f"unix:path={tmp_path}/run/dbus/system_bus_socket"
    assert bus_address(Tree(Path("/")), "unix:path=/told") == "unix:path=/told"
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS")
    assert bus_address(Tree(Path("/")), None) == "unix:path=/run/dbus/system_bus_socket"
