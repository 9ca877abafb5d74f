"""Asks NetworkManager over D-Bus for the network's name and whether it is metered, both of one interface.

jeepney only puts messages into bytes and back; the socket, its limits of time and of bytes, are handled here.
"""

from __future__ import annotations

import itertools
import socket
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.cards import ssid_text

LIMIT_S = 1.5
_MAX_BYTES = 1 << 20
_NAME = "org.freedesktop.NetworkManager"
_ROOT = "/org/freedesktop/NetworkManager"
_DEVICE = f"{_NAME}.Device"
_NOTHING = "/"
# What a bus answers where nobody has that name, and NetworkManager where an interface is none of its own.
_NOBODY = ("org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner")
_NOT_ITS_OWN = f"{_NAME}.UnknownDevice"


class NoManager(CannotTell):
    """Nobody manages this interface who could be asked; other than where somebody does, and does not answer."""


@dataclass(frozen=True)
class Told:
    """What NetworkManager says: its code for metering (NMMetered), and the network's name where one is joined."""

    metered: int
    ssid: str | None


def ask_network_manager(bus: str, interface: str, *, wireless: bool, limit_s: float | None = None) -> Told:
    """`bus` is the address of a message bus. Raises NoManager where there is none, CannotTell where it does not answer."""
    limit_s = LIMIT_S if limit_s is None else limit_s
    try:
        with closing(_Bus(bus, time.monotonic() + limit_s)) as line:
            device = line.call(_ROOT, _NAME, "GetDeviceByIpIface", "s", interface)
            metered = line.get(device, _DEVICE, "Metered")
            ssid = _ssid(line, device) if wireless else None
    except TimeoutError as error:
        raise CannotTell(f"NetworkManager has not answered within {limit_s:g} s") from error
    except OSError as error:
        raise CannotTell(f"the message bus {bus}: {error.strerror or error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CannotTell(f"NetworkManager's answer cannot be read ({type(error).__name__}: {error})") from error
    if type(metered) is not int:
        raise CannotTell("NetworkManager says of Metered what is no number")
    return Told(metered, ssid)


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
        except (TimeoutError, BlockingIOError, PermissionError):  # it is there, but does not let us in
            raise
        except OSError as error:
            raise NoManager("NetworkManager does not run") from error
        except (RuntimeError, ValueError, StopIteration, jeepney.auth.AuthenticationError) as error:
            raise CannotTell(f"the message bus {address} cannot be used ({error})") from error
        try:
            self.ask("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus", "Hello")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
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
        """The body of the reply. Raises CannotTell for an error, e.g. where nobody has that name; nobody is started for it."""
        to = self._jeepney.DBusAddress(path, bus_name=name, interface=interface)
        message = self._jeepney.new_method_call(to, method, signature or None, arguments)
        message.header.flags = self._jeepney.MessageFlag.no_auto_start
        serial = next(self._serials)
        self._socket.settimeout(self._left_s())
        self._socket.sendall(message.serialise(serial))
        reply = self._reply_to(serial)
        if reply.header.message_type is self._jeepney.MessageType.error:
            error = reply.header.fields.get(self._jeepney.HeaderFields.error_name, "")
            kind = NoManager if error in (*_NOBODY, _NOT_ITS_OWN) else CannotTell
            raise kind(f"NetworkManager: {method} fails ({error})")
        return tuple(reply.body)

    def _reply_to(self, serial: int) -> Any:
        heard = 0
        while heard < _MAX_BYTES:
            reply = self._parser.get_next_message()
            while reply is not None:
                if reply.header.fields.get(self._jeepney.HeaderFields.reply_serial) == serial:
                    return reply
                reply = self._parser.get_next_message()
            self._socket.settimeout(self._left_s())
            piece = self._socket.recv(4096)
            if not piece:
                raise CannotTell("the message bus has hung up")
            heard += len(piece)
            self._parser.add_data(piece)
        raise CannotTell("the message bus says too much")

    def _left_s(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s
