"""The kind of link of an interface, and its usual metering."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.sensors.device_facts import Confidence, Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.network_link import (
    NetInterface,
    link_kind,
    read_link,
    reported_metering,
    ssid_text,
    uevent_value,
    usual_metering,
)
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.device_agent.sensors.scenes import Scene

MEASURED, ASSUMED, UNKNOWN = Confidence.MEASURED, Confidence.ASSUMED, Confidence.UNKNOWN


@pytest.mark.parametrize(
    ("card", "kind", "confidence"),
    [
        ({"arp_type": "772"}, LinkKind.LOOPBACK, MEASURED),
        ({"arp_type": "1", "wireless": True, "hardware": True}, LinkKind.WIFI, MEASURED),
        ({"arp_type": "1", "device_type": "wlan"}, LinkKind.WIFI, MEASURED),
        ({"arp_type": "65534", "device_type": "wwan"}, LinkKind.CELLULAR, MEASURED),
        ({"arp_type": "1", "driver": "cdc_mbim", "hardware": True}, LinkKind.CELLULAR, MEASURED),
        ({"arp_type": "1", "driver": "rndis_host", "hardware": True}, LinkKind.CELLULAR, ASSUMED),
        ({"arp_type": "1", "device_type": "bluetooth"}, LinkKind.CELLULAR, ASSUMED),
        ({"arp_type": "512", "device_type": "ppp"}, LinkKind.CELLULAR, ASSUMED),
        ({"arp_type": "1", "driver": "r8152", "hardware": True}, LinkKind.ETHERNET, MEASURED),
        ({"arp_type": "1"}, LinkKind.OTHER, MEASURED),
        ({"arp_type": "65534", "device_type": "wireguard"}, LinkKind.OTHER, MEASURED),
        ({"arp_type": "1", "device_type": "bridge"}, LinkKind.OTHER, MEASURED),
        ({}, LinkKind.OTHER, MEASURED),
    ],
)
def test_kinds_by_their_table(card, kind, confidence):
    """The kernel's data of the interface decide; a driver that phones use makes the kind an assumption."""
    fact = link_kind(NetInterface(name="x0", **card))
    assert (fact.value, fact.confidence) == (kind, confidence)


def _made_of(tmp_path, *lower: str):
    scene = Scene(tmp_path)
    scene.card("eth0", driver="bcmgenet")
    scene.card("wlan0", devtype="wlan", driver="brcmfmac", wireless=True)
    scene.card("veth1", driver="")
    scene.card("br0", devtype="bridge")
    scene.above("br0", *lower)
    return read_link(SysFs(scene.root), "br0").value


@pytest.mark.parametrize(
    ("lower", "kind"),
    [
        (["eth0"], LinkKind.ETHERNET),
        (["eth0", "veth1"], LinkKind.ETHERNET),
        (["wlan0"], LinkKind.WIFI),
        (["eth0", "wlan0"], LinkKind.OTHER),
        (["veth1"], LinkKind.OTHER),
        (["br0"], LinkKind.OTHER),
    ],
)
def test_a_bridge_is_what_it_is_made_of(tmp_path, lower, kind):
    """A bridge has the kind of its hardware; with several kinds or none it is OTHER. A circle ends."""
    assert _made_of(tmp_path, *lower) is kind


@pytest.mark.parametrize(
    ("kind", "metered"),
    [
        (LinkKind.LOOPBACK, False),
        (LinkKind.ETHERNET, False),
        (LinkKind.WIFI, False),
        (LinkKind.CELLULAR, True),
        (LinkKind.OTHER, None),
    ],
)
def test_metering_by_kind_of_link_is_marked_as_assumed(kind, metered):
    fact = usual_metering(Fact(kind, "x0"))
    assert (fact.value, fact.confidence) == (metered, UNKNOWN if metered is None else ASSUMED)


@pytest.mark.parametrize(
    ("code", "on_ethernet", "on_mobile"),
    [
        (0, (False, ASSUMED), (True, ASSUMED)),
        (1, (True, MEASURED), (True, MEASURED)),
        (2, (False, MEASURED), (False, MEASURED)),
        (3, (True, ASSUMED), (True, ASSUMED)),
        (4, (False, ASSUMED), (True, ASSUMED)),
        (77, (False, ASSUMED), (True, ASSUMED)),
    ],
)
def test_metering_follows_network_manager(code, on_ethernet, on_mobile):
    """Its statement counts, but a guessed no does not make mobile data unmetered."""
    for kind, expected in ((LinkKind.ETHERNET, on_ethernet), (LinkKind.CELLULAR, on_mobile)):
        fact = reported_metering(code, Fact(kind, "x0"))
        assert (fact.value, fact.confidence) == expected


@pytest.mark.parametrize(
    ("ssid", "text"),
    [
        (b"Home", "Home"),
        ("Käthes Netz ☕".encode(), "Käthes Netz ☕"),
        (b"caf\xe9", r"caf\xe9"),
        (b"\x1b[2Jx\n", r"\x1b[2Jx\n"),
        ([72, 105], "Hi"),
        (b"", ""),
    ],
)
def test_a_networks_name_as_text(ssid, text):
    assert ssid_text(ssid) == text


@given(st.binary(max_size=64))
def test_any_name_of_a_network_can_be_shown(ssid):
    assert all(one.isprintable() for one in ssid_text(ssid))


@given(st.text(max_size=60), st.text(max_size=10))
def test_any_uevent_can_be_read(text, key):
    assert isinstance(uevent_value(text, key), str)
    assert uevent_value(f"A=b\nDEVTYPE=wwan\nINTERFACE=x{text}", "DEVTYPE") == "wwan"
