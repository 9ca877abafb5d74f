"""A real message bus, and a NetworkManager on it with configured answers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from fedpatch.device_agent.sensors import network_manager, timeouts
from fedpatch.device_agent.sensors.device_facts import Confidence
from fedpatch.device_agent.sensors.network_manager import NmState, ask_network_manager
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.device_agent.sensors.buses import (
    DEVICE,
    MANAGER,
    MOCK,
    NAME,
    PATIENCE_S,
    WIRELESS,
    NetworkManager,
    message_bus,
)
from tests.device_agent.sensors.scenes import Scene

MEASURED, ASSUMED, UNKNOWN = Confidence.MEASURED, Confidence.ASSUMED, Confidence.UNKNOWN
ACTIVATED = 100
SSID = "Käthes Netz"
# Like the real one, which refuses an interface that it does not manage.
FIND_OR_REFUSE = f"""ret = self.get_device_by_ip_iface(self, args[0])
if args[0] == "broken0":
    raise dbus.exceptions.DBusException("no", name="{NAME}.PermissionDenied")
if ret is None:
    raise dbus.exceptions.DBusException("No device found for the requested iface.", name="{NAME}.UnknownDevice")
"""


@pytest.fixture(scope="module")
def bus():
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, message_bus(Path(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def manager(bus):
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
    scene = Scene(tmp_path)
    scene.card("wlan0", devtype="wlan", driver="brcmfmac", wireless=True)
    scene.card("usb0", driver="rndis_host")
    return scene


def _ask(manager: NetworkManager, interface: str = "wlan0", *, wireless: bool = True) -> NmState:
    return ask_network_manager(manager.bus, interface, wireless=wireless, limit_s=PATIENCE_S)


def test_the_network_and_its_costs_are_those_of_the_devices_own_interface(manager, scene):
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
    """NetworkManager guesses that a phone's hotspot is metered; the owner's setting is known."""
    manager.set_property(manager.wlan, DEVICE, "Metered", "u", code)
    fact = scene.observer("wlan0", bus=manager.bus).observe().metered
    assert (fact.value, fact.confidence) == (metered, confidence)


def test_a_name_in_bytes_that_are_no_text(manager):
    manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "ay", b"caf\xe9")
    try:
        assert _ask(manager).ssid == r"caf\xe9"
    finally:
        manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "ay", SSID.encode())


def test_a_card_that_has_joined_no_network(manager, scene):
    manager.set_property(manager.wlan, WIRELESS, "ActiveAccessPoint", "o", "/")
    try:
        fact = scene.observer("wlan0", bus=manager.bus).observe().ssid
        assert (fact.value, fact.confidence) == (None, UNKNOWN)
        assert "has joined" in fact.source
    finally:
        manager.set_property(manager.wlan, WIRELESS, "ActiveAccessPoint", "o", manager.point)


def test_an_interface_that_network_manager_does_not_know(manager, scene):
    scene.card("wlan9", devtype="wlan", wireless=True)
    scene.program("iw", r"printf 'Connected to 00:23 (on wlan9)\n\tSSID: caf\\xe9: no 2\n\tfreq: 2425\n'")
    facts = scene.observer("wlan9", bus=manager.bus).observe()
    assert (facts.metered.value, facts.metered.confidence) == (False, ASSUMED)
    assert (facts.ssid.value, facts.ssid.source) == (r"caf\xe9: no 2", "iw")


def test_a_network_manager_that_refuses_leaves_the_costs_unknown(manager, scene):
    scene.card("broken0", devtype="wlan", wireless=True)
    fact = scene.observer("broken0", bus=manager.bus).observe().metered
    assert fact.value is None and "PermissionDenied" in fact.source


@pytest.mark.parametrize(("signature", "lie"), [("s", "yes"), ("b", True), ("d", 2.0), ("as", ["a"])])
def test_an_answer_of_another_type_is_no_answer(manager, signature, lie):
    manager.set_property(manager.usb, DEVICE, "Metered", signature, lie)
    try:
        with pytest.raises(FactUnavailable, match="no number"):
            _ask(manager, "usb0", wireless=False)
    finally:
        manager.set_property(manager.usb, DEVICE, "Metered", "u", 4)


def test_a_name_of_another_type_is_no_answer(manager):
    manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "d", 0.5)
    try:
        with pytest.raises(FactUnavailable, match="cannot be read"):
            _ask(manager)
    finally:
        manager.set_property(manager.point, f"{NAME}.AccessPoint", "Ssid", "ay", SSID.encode())


def test_a_network_manager_that_hangs_is_given_up(manager, scene, monkeypatch):
    """The link is still known; its metering is asked for again and not guessed, since NetworkManager may know it."""
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
    assert _ask(manager) == NmState(1, SSID)


def test_a_network_manager_that_hangs_delays_one_look(manager, scene, monkeypatch):
    """The next look finds the network's name without NetworkManager; once that answers again, the metering is known."""
    monkeypatch.setattr(timeouts, "QUICK_S", 0.1)
    monkeypatch.setattr(network_manager, "LIMIT_S", 0.3)
    scene.program("iw", r"printf '\tSSID: home\n'")
    observer = scene.observer("wlan0", bus=manager.bus)
    manager.set_property(manager.wlan, DEVICE, "Metered", "u", 1)
    manager.freeze()
    try:
        assert not observer.observe().metered.known
        monkeypatch.setattr(network_manager, "LIMIT_S", PATIENCE_S)
        facts = observer.observe()  # it has its long limit again, but no look waits for it
        assert facts.ssid.value == "home"
        assert not facts.metered.known and "NetworkManager has not answered for" in facts.metered.source
    finally:
        manager.thaw()
    until = time.monotonic() + PATIENCE_S
    while not (fact := observer.observe().metered).known:
        assert time.monotonic() < until, "a NetworkManager that answers again is not believed"
        time.sleep(0.02)
    assert (fact.value, fact.confidence) == (True, MEASURED)
