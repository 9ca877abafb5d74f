"""The name of the joined wireless network and what the link costs: by NetworkManager, else by what is there without it."""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.cards import ssid_text, told_metering, usual_metering
from device_agent.conditions.network_manager import NoManager, Told
from device_agent.conditions.programs import run_program
from device_agent.conditions.tree import Tree
from device_agent.facts import Fact
from shared.reasons import LinkKind

_SYSTEM_BUS = "run/dbus/system_bus_socket"
_SIOCGIWESSID = 0x8B1B  # linux/wireless.h
_MAX_SSID_BYTES = 32
_ESCAPED = re.compile(rb"\\x([0-9A-Fa-f]{2})")


class Network(NamedTuple):
    """The two facts about the network that the link belongs to."""

    ssid: Fact[str]
    metered: Fact[bool]


def bus_address(tree: Tree, bus: str | None) -> str:
    """Where the system's message bus is: as told, else as the environment says, else where it always is."""
    usual = f"unix:path={tree.root / _SYSTEM_BUS}"
    return bus or (os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") if tree.live else None) or usual


def read_network(tree: Tree, ask: Callable[[str, bool], Told], interface: str, link: Fact[LinkKind]) -> Network:
    """What is known of the network behind an interface. `ask` asks NetworkManager of it, and of its name if it is wireless."""
    wireless = link.value is LinkKind.WIFI
    no_name: Fact[str] = Fact.unknown(f"{interface} is not wireless")
    try:
        told = ask(interface, wireless)
    except CannotTell as error:
        # Who is there and silent may know better than what is usual.
        metered = usual_metering(link) if isinstance(error, NoManager) else Fact[bool].unknown(str(error))
        return Network(_name_without(tree, interface, str(error)) if wireless else no_name, metered)
    if told.ssid is not None:
        return Network(Fact(told.ssid, "NetworkManager"), told_metering(told.metered, link))
    if wireless:  # it may leave this interface to somebody else, such as wpa_supplicant
        no_name = _name_without(tree, interface, f"NetworkManager knows no network that {interface} has joined")
    return Network(no_name, told_metering(told.metered, link))


def _name_without(tree: Tree, interface: str, why: str) -> Fact[str]:
    """The kernel is asked, then iw."""
    name = _ask_driver(interface) if tree.live else ""
    if name:
        return Fact(name, f"the driver of {interface}")
    program = tree.program("iw")
    if program is not None:
        try:
            name = parse_iw(run_program([program, "dev", interface, "link"]).text)
        except CannotTell as error:
            return Fact.unknown(f"{why}; {error}")
    return Fact(name, "iw") if name else Fact.unknown(f"{why}, and neither the driver nor iw names the network")


def _ask_driver(interface: str) -> str:
    """The wireless extensions' ESSID; empty where there is none or this kernel is built without them."""
    space = array.array("B", bytes(_MAX_SSID_BYTES + 2))
    at, length = space.buffer_info()
    request = bytearray(struct.pack("16sPHH", interface.encode()[:15], at, length, 0).ljust(32, b"\0"))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCGIWESSID, request)
    except OSError:
        return ""
    _, _, used, joined = struct.unpack_from("16sPHH", request)
    return ssid_text(space.tobytes()[:used].rstrip(b"\0")) if joined and used <= _MAX_SSID_BYTES else ""


def parse_iw(text: str) -> str:
    r"""The network's name in what `iw dev IF link` prints, which writes odd bytes as \xNN; empty where there is none."""
    for line in text.splitlines():
        key, colon, value = line.strip().partition(": ")
        if colon and key == "SSID":
            return ssid_text(_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), value.encode("utf-8")))
    return ""
