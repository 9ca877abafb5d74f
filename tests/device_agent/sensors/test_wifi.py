"""The joined network's name if NetworkManager does not know it: from the card's driver, else from iw."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from pathlib import Path

import pytest

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.network_manager import NmState
from fedpatch.device_agent.sensors.wifi import read_network
from fedpatch.shared.wire.reason_codes import LinkKind
from tests.device_agent.sensors.scenes import Scene

WIFI = Fact(LinkKind.WIFI, "a test")


@pytest.fixture
def tree(tmp_path: Path) -> SysFs:
    """Files of a machine whose live kernel is asked; its iw names another network."""
    Scene(tmp_path).program("iw", r"printf '\tSSID: from iw\n'")
    tree = SysFs(tmp_path)
    tree.live = True
    return tree


def _driver(name: bytes | None, joined: int = 1, monkeypatch=None) -> None:
    """Fake the answer of a card's driver to SIOCGIWESSID; None: the driver does not support it."""

    def ioctl(_socket: object, number: int, request: bytearray) -> None:
        assert number == 0x8B1B
        if name is None:
            raise OSError(95, "Operation not supported")
        card, at, room, _ = struct.unpack_from("16sPHH", request)
        assert card.rstrip(b"\0") == b"wlan0" and room == 34
        ctypes.memmove(at, name, min(len(name), room))
        struct.pack_into("16sPHH", request, 0, card, at, len(name), joined)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)


@pytest.mark.parametrize(
    ("name", "joined", "ssid", "source"),
    [
        (b"home", 1, "home", "the driver of wlan0"),
        (b"caf\xc3\xa9\0\0", 1, "caf\xe9", "the driver of wlan0"),
        (b"home", 0, "from iw", "iw"),
        (b"x" * 60, 1, "from iw", "iw"),
        (None, 1, "from iw", "iw"),
    ],
    ids=["name", "padded", "not joined", "too long", "no extensions"],
)
def test_the_driver_is_asked_before_iw(tree, monkeypatch, name, joined, ssid, source):
    """Its value counts if it can be a name, at most 32 bytes; newer kernels are built without this call."""
    _driver(name, joined, monkeypatch)
    found = read_network(tree, lambda *_: NmState(0, None), "wlan0", WIFI).ssid
    assert (found.value, found.source) == (ssid, source)


@pytest.mark.parametrize(("script", "why"), [("exit 1", "neither the driver nor iw names"), ("", "iw cannot be run")])
def test_a_network_that_nobody_can_name_is_unknown(tree, monkeypatch, script, why):
    _driver(None, monkeypatch=monkeypatch)
    iw = tree.root / "usr/bin/iw"
    iw.write_text(f"#!/bin/sh\n{script}\n") if script else iw.write_bytes(b"\0")
    found = read_network(tree, lambda *_: NmState(0, None), "wlan0", WIFI).ssid
    assert found.value is None and why in found.source and "NetworkManager knows no network" in found.source
