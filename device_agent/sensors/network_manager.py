"""NetworkManager's answers about an interface, over D-Bus: the name of the joined network, and whether it is metered.

jeepney only encodes and decodes messages; the socket and its limits of time and bytes are handled here.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.network_link import ssid_text
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

LIMIT_S = 1.5
_MAX_BYTES = 1 << 20
_NAME = "org.freedesktop.NetworkManager"
_ROOT = "/org/freedesktop/NetworkManager"
_DEVICE = f"{_NAME}.Device"
_NOTHING = "/"
_SYSTEM_BUS = "run/dbus/system_bus_socket"
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


def bus_address(tree: SysFs, bus: str | None) -> str:
    """Return the address of the system's message bus: the argument, else the environment's, else the usual one."""
    usual = f"unix:path={tree.root / _SYSTEM_BUS}"
    return bus or (os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") if tree.live else None) or usual


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
