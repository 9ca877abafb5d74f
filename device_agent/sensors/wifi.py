"""The name of the joined wireless network and whether the link is metered: by NetworkManager, else by the driver or iw.

Asks NetworkManager over D-Bus for the network's name and whether it is metered, both of one interface.

jeepney only encodes and decodes messages; the socket and its limits of time and bytes are handled here.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.network_link import reported_metering, ssid_text, usual_metering
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.shared.wire.reason_codes import LinkKind

LIMIT_S = 1.5
_MAX_BYTES = 1 << 20
_NAME = "org.freedesktop.NetworkManager"
_ROOT = "/org/freedesktop/NetworkManager"
_DEVICE = f"{_NAME}.Device"
_NOTHING = "/"
# Answers of a bus without that name, and of NetworkManager about an unmanaged interface.
_NOBODY = ("org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner")
_NOT_ITS_OWN = f"{_NAME}.UnknownDevice"


class NoManager(FactUnavailable):
    """No program manages this interface; different from a manager that does not answer."""


@dataclass(frozen=True)
class NmState:
    """NetworkManager's answer: its code for metering (NMMetered), and the name of the joined network."""

    metered: int
    ssid: str | None


def ask_network_manager(bus: str, interface: str, *, wireless: bool, limit_s: float | None = None) -> NmState:
    """Ask NetworkManager about an interface.

    Args:
        bus: Address of the system's message bus.
        interface: Name of the interface, such as "wlan0".
        wireless: Ask for the name of the joined network too.
        limit_s: Longest wait for the answers, in seconds; None: LIMIT_S.

    Raises:
        NoManager: There is no NetworkManager.
        FactUnavailable: NetworkManager does not answer, or its answer is not understood.
    """
    limit_s = LIMIT_S if limit_s is None else limit_s
    try:
        with closing(_Bus(bus, time.monotonic() + limit_s)) as line:
            device = line.call(_ROOT, _NAME, "GetDeviceByIpIface", "s", interface)
            metered = line.get(device, _DEVICE, "Metered")
            ssid = _ssid(line, device) if wireless else None
    except TimeoutError as error:
        raise FactUnavailable(f"NetworkManager has not answered within {limit_s:g} s") from error
    except OSError as error:
        raise FactUnavailable(f"the message bus {bus}: {error.strerror or error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FactUnavailable(f"NetworkManager's answer cannot be read ({type(error).__name__}: {error})") from error
    if type(metered) is not int:
        raise FactUnavailable("NetworkManager's Metered is no number")
    return NmState(metered, ssid)


def _ssid(line: _Bus, device: str) -> str | None:
    point = line.get(device, f"{_DEVICE}.Wireless", "ActiveAccessPoint")
    if point == _NOTHING:
        return None
    return ssid_text(line.get(point, f"{_NAME}.AccessPoint", "Ssid")) or None


class _Bus:
    """One connection to a message bus, open for one round of questions."""

    def __init__(self, address: str, deadline: float) -> None:
        try:
            import jeepney
            from jeepney.bus import get_bus
            from jeepney.io.blocking import prep_socket
        except ImportError as error:
            raise NoManager("NetworkManager is not asked, since jeepney is not installed") from error
        self._jeepney = jeepney
        self._deadline = deadline
        self._serials = itertools.count(1)
        self._parser = jeepney.Parser()
        try:
            self._socket: socket.socket = prep_socket(get_bus(address), timeout=self._left_s())
        except (TimeoutError, BlockingIOError, PermissionError):  # the bus exists, but refuses the connection
            raise
        except OSError as error:
            raise NoManager("NetworkManager does not run") from error
        except (RuntimeError, ValueError, StopIteration, jeepney.auth.AuthenticationError) as error:
            raise FactUnavailable(f"the message bus {address} cannot be used ({error})") from error
        try:
            self.ask("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus", "Hello")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def get(self, path: str, interface: str, name: str) -> Any:
        """A property's value."""
        return self.call(path, "org.freedesktop.DBus.Properties", "Get", "ss", interface, name)[1]

    def call(self, path: str, interface: str, method: str, signature: str = "", *arguments: object) -> Any:
        """The first value that NetworkManager gives back."""
        return self.ask(path, _NAME, interface, method, signature, *arguments)[0]

    def ask(
        self, path: str, name: str, interface: str, method: str, signature: str = "", *arguments: object
    ) -> tuple[Any, ...]:
        """The body of the reply. Raises FactUnavailable for an error; no service is started for it."""
        to = self._jeepney.DBusAddress(path, bus_name=name, interface=interface)
        message = self._jeepney.new_method_call(to, method, signature or None, arguments)
        message.header.flags = self._jeepney.MessageFlag.no_auto_start
        serial = next(self._serials)
        self._socket.settimeout(self._left_s())
        self._socket.sendall(message.serialise(serial))
        reply = self._reply_to(serial)
        if reply.header.message_type is self._jeepney.MessageType.error:
            error = reply.header.fields.get(self._jeepney.HeaderFields.error_name, "")
            kind = NoManager if error in (*_NOBODY, _NOT_ITS_OWN) else FactUnavailable
            raise kind(f"NetworkManager: {method} fails ({error})")
        return tuple(reply.body)

    def _reply_to(self, serial: int) -> Any:
        received = 0
        while received < _MAX_BYTES:
            reply = self._parser.get_next_message()
            while reply is not None:
                if reply.header.fields.get(self._jeepney.HeaderFields.reply_serial) == serial:
                    return reply
                reply = self._parser.get_next_message()
            self._socket.settimeout(self._left_s())
            piece = self._socket.recv(4096)
            if not piece:
                raise FactUnavailable("the message bus has hung up")
            received += len(piece)
            self._parser.add_data(piece)
        raise FactUnavailable("the message bus sends too many bytes")

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


_SYSTEM_BUS = "run/dbus/system_bus_socket"
_SIOCGIWESSID = 0x8B1B  # linux/wireless.h
_MAX_SSID_BYTES = 32
_ESCAPED = re.compile(rb"\\x([0-9A-Fa-f]{2})")


class Network(NamedTuple):
    """The two facts about the network that the link belongs to."""

    ssid: Fact[str]
    metered: Fact[bool]


def bus_address(tree: SysFs, bus: str | None) -> str:
    """Return the address of the system's message bus: the argument, else the environment's, else the usual one."""
    usual = f"unix:path={tree.root / _SYSTEM_BUS}"
    return bus or (os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") if tree.live else None) or usual


def read_network(tree: SysFs, ask: Callable[[str, bool], NmState], interface: str, link: Fact[LinkKind]) -> Network:
    """Return name and metering of the network behind an interface.

    Args:
        tree: The kernel's files.
        ask: Asks NetworkManager about an interface, and whether it is wireless.
        interface: Name of the interface.
        link: Kind of its link.
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
