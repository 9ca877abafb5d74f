"""A relay in front of a broker: a test can cut its connections, and it can make the broker look like an old one.

It runs in threads of the test's process, so it uses some CPU time; it forwards the real bytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from tests.support.brokers import HOST

PUBACK, SUBACK = 4, 9
_CONNECT, _PUBLISH = 1, 3
_MQTT_3_1_1 = 4
_WRONG_VERSION = b"\x20\x02\x00\x01"
_RETAIN_OF_A_PUBLISH, _RETAIN_OF_A_WILL = 0x01, 0x20


class Relay:
    """Forwards all bytes to the broker on `port` and back.

    With `old` it refuses MQTT 5 like brokers that support 3.1.1 only. With `forgetful` it clears the retain flag of every
    message and every last will, like a broker that ignores the flag silently; for 3.1.1 only.
    It forwards packets of clients at `bytes_per_s`, unless that is 0. From a connection's first part of more than
    `most_back_bytes` from the broker on, it forwards nothing back, like a path whose packets must be small.
    While `swallows` is a kind of packet (PUBACK or SUBACK), it loses packets of that kind from the broker.
    """

    def __init__(
        self,
        port: int,
        *,
        old: bool = False,
        forgetful: bool = False,
        bytes_per_s: int = 0,
        most_back_bytes: int = 2**16,
        swallows: int | None = None,
    ) -> None:
        self._broker_port = port
        self._bytes_per_s = bytes_per_s
        self._most_back_bytes = most_back_bytes
        self.swallows = swallows
        self._old, self._forgetful = old, forgetful
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._silent: frozenset[socket.socket] = frozenset()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self.port}"

    def cut(self) -> None:
        """End all connections without a disconnect packet, as when a cable is pulled out and put in again."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            _shut(end)

    def fall_silent(self) -> None:
        """From now on, drop all bytes of the present connections; new connections are good."""
        with self._lock:
            self._silent = frozenset(self._open)

    def redirect(self, port: int) -> None:
        """End all connections, and forward new ones to another broker."""
        self._broker_port = port
        self.cut()

    def __enter__(self) -> Relay:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection((HOST, self._broker_port))
                except OSError:
                    client.close()
                    continue
                for end in (client, broker):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {client, broker}
                self._spawn(self._serve, client, broker)

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        give_back = self._copy_back if self.swallows is None else self._forward_back
        back = threading.Thread(target=give_back, args=(broker, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError, EOFError):
            self._forward(client, broker)
        _shut(client)
        _shut(broker)
        back.join()
        with self._lock:
            self._open -= {client, broker}
        client.close()
        broker.close()

    def _forward(self, client: socket.socket, broker: socket.socket) -> None:
        with client.makefile("rb") as stream:
            while True:
                packet = _read_packet(stream.read)
                kind = packet[0] >> 4
                if kind == _CONNECT and self._old and _level(packet) != _MQTT_3_1_1:
                    client.sendall(_WRONG_VERSION)
                    return
                if self._forgetful:
                    _forget(packet, kind)
                if self._bytes_per_s:
                    time.sleep(len(packet) / self._bytes_per_s)
                if broker not in self._silent:
                    broker.sendall(packet)

    def _copy_back(self, broker: socket.socket, client: socket.socket) -> None:
        passes = True
        with contextlib.suppress(OSError):
            while part := broker.recv(2**16):
                passes = passes and len(part) <= self._most_back_bytes
                if passes and broker not in self._silent:
                    client.sendall(part)
        _shut(client)

    def _forward_back(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), broker.makefile("rb") as stream:
            while True:
                packet = _read_packet(stream.read)
                if packet[0] >> 4 != self.swallows:
                    client.sendall(packet)
        _shut(client)


def _read_packet(read: object) -> bytearray:
    def exactly(size: int) -> bytes:
        part: bytes = read(size)  # type: ignore[operator]
        if len(part) < size:
            raise EOFError
        return part

    packet = bytearray(exactly(2))
    while packet[-1] & 0x80:
        packet += exactly(1)
    size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(packet[1:]))
    return packet + exactly(size)


def _body(packet: bytearray) -> int:
    """Return the offset of the body: after the kind and the bytes of the length."""
    at = 1
    while packet[at] & 0x80:
        at += 1
    return at + 1


def _level(packet: bytearray) -> int:
    """The protocol level of a CONNECT, after the protocol's name."""
    at = _body(packet)
    return packet[at + 2 + int.from_bytes(packet[at : at + 2], "big")]


def _forget(packet: bytearray, kind: int) -> None:
    if kind == _PUBLISH:
        packet[0] &= ~_RETAIN_OF_A_PUBLISH
    elif kind == _CONNECT:
        at = _body(packet)
        packet[at + 3 + int.from_bytes(packet[at : at + 2], "big")] &= ~_RETAIN_OF_A_WILL


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
