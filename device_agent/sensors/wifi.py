"""The name of the joined wireless network and whether the link is metered: by NetworkManager, else by the driver or iw."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.network_link import reported_metering, ssid_text, usual_metering
from fedpatch.device_agent.sensors.network_manager import NmState, NoManager
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.wire.reason_codes import LinkKind

_SIOCGIWESSID = 0x8B1B  # linux/wireless.h
_MAX_SSID_BYTES = 32
_ESCAPED = re.compile(rb"\\x([0-9A-Fa-f]{2})")


class Network(NamedTuple):
    """The two facts about the network that the link belongs to."""

    ssid: Fact[str]
    metered: Fact[bool]


def read_network(tree: SysFs, ask: Callable[[str, bool], NmState], interface: str, link: Fact[LinkKind]) -> Network:
    """Return name and metering of the network behind an interface.

    Args:
        ask: Asks NetworkManager about an interface, and whether it is wireless.
    """
    wireless = link.value is LinkKind.WIFI
    no_name: Fact[str] = Fact.unknown(f"{interface} is not wireless")
    try:
        state = ask(interface, wireless)
    except FactUnavailable as error:
        # A manager that runs but does not answer may have another value than the usual one.
        metered = usual_metering(link) if isinstance(error, NoManager) else Fact[bool].unknown(str(error))
        return Network(_name_without(tree, interface, str(error)) if wireless else no_name, metered)
    if state.ssid is not None:
        return Network(Fact(state.ssid, "NetworkManager"), reported_metering(state.metered, link))
    if wireless:  # it may leave this interface to another program, such as wpa_supplicant
        no_name = _name_without(tree, interface, f"NetworkManager knows no network that {interface} has joined")
    return Network(no_name, reported_metering(state.metered, link))


def _name_without(tree: SysFs, interface: str, why: str) -> Fact[str]:
    """Return the network's name from the driver, else from iw."""
    name = _ask_driver(interface) if tree.live else ""
    if name:
        return Fact(name, f"the driver of {interface}")
    program = tree.program("iw")
    if program is not None:
        try:
            name = parse_iw(run_program([program, "dev", interface, "link"]).text)
        except FactUnavailable as error:
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
    r"""Return the network's name in the output of `iw dev IF link`, which writes odd bytes as \xNN; empty if there is none."""
    for line in text.splitlines():
        key, colon, value = line.strip().partition(": ")
        if colon and key == "SSID":
            return ssid_text(_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), value.encode("utf-8")))
    return ""
