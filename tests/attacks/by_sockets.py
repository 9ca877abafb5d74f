"""Attacks on the broker's port with bytes that no MQTT library sends; the broker must stop them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

from tests.attacks import raw
from tests.attacks.arena import Arena
from tests.attacks.attack import Attack


def _violation(*parts: bytes, welcomed: bool = True) -> Callable[[Arena, str], None]:
    """Send bytes that break the protocol. The evidence is that the broker ends the connection."""

    def play(arena: Arena, device: str) -> None:
        with ExitStack() as stack:
            name = f"{arena.fleet}-{device}"
            opened = raw.welcomed(arena.broker.port, name) if welcomed else raw.opened(arena.broker.port)
            connection = stack.enter_context(opened)
            for part in parts:
                connection.sendall(part)
            assert raw.is_shown_the_door(connection), "the broker took it"
        arena.asked()

    return play


def _half_open(arena: Arena, _device: str) -> None:
    """Fifty silent connections, until the run has begun."""
    with ExitStack() as stack:
        silent = [stack.enter_context(raw.opened(arena.broker.port)) for _ in range(50)]
        arena.asked()
        assert all(one.fileno() >= 0 for one in silent)


def _slow_reader(arena: Arena, device: str) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(raw.PATIENCE_S)
        connection.connect(("127.0.0.1", arena.broker.port))
        connection.sendall(raw.hello(f"{arena.fleet}-{device}".encode()))
        assert connection.recv(4)[:1] == b"\x20"
        connection.sendall(raw.subscribe(f"fedpatch/1/{arena.fleet}/#".encode()))
        assert connection.recv(1) == b"\x90"
        arena.spy.message("down", lambda envelope, _: envelope.round >= 2)


def _cut_off(arena: Arena, device: str) -> None:
    """Announce a longer packet than is sent, then send nothing; the run continues."""
    with raw.welcomed(arena.broker.port, f"{arena.fleet}-{device}") as connection:
        connection.sendall(b"\x30" + raw.length(100_000) + raw.text(b"fedpatch/x") + bytes(10))
        arena.spy.message("down", lambda envelope, _: envelope.round >= 2)


_CLOSED = "the broker ends the connection"

SOCKET_ATTACKS = (
    Attack(
        "half-open connections",
        "fifty without a packet",
        "the broker's limits; the run has its own connection",
        _half_open,
    ),
    Attack("slow reader", "subscribes to all, reads nothing", "the broker's queue of that client", _slow_reader),
    Attack("half a packet", "an announced length without data", "the broker waits for that client alone", _cut_off),
    Attack(
        "speaks before it connects",
        "PUBLISH first",
        _CLOSED,
        _violation(raw.publish(b"fedpatch/x", b""), welcomed=False),
    ),
    Attack("connects twice", "CONNECT on an open session", _CLOSED, _violation(raw.hello(b"again"))),
    Attack(
        "another protocol", "CONNECT of `HTTP`", _CLOSED, _violation(raw.hello(b"x", protocol=b"HTTP"), welcomed=False)
    ),
    Attack("no such packet", "packet type 0", _CLOSED, _violation(raw.packet(0, b""))),
    Attack(
        "length without an end", "five bytes of remaining length", _CLOSED, _violation(b"\x30\xff\xff\xff\xff\xff\x01")
    ),
    Attack("QoS 3", "both QoS bits of a PUBLISH", _CLOSED, _violation(raw.publish(b"fedpatch/x", b"", flags=6, mid=1))),
    Attack("publishes to a wildcard", "a topic with # in it", _CLOSED, _violation(raw.publish(b"fedpatch/#", b""))),
    Attack("a topic that is no UTF-8", "invalid UTF-8", _CLOSED, _violation(raw.publish(b"fedpatch/\xff\xfe", b""))),
    Attack(
        "subscribes with wrong flags",
        "SUBSCRIBE with flags 0",
        _CLOSED,
        _violation(raw.subscribe(b"fedpatch/#", flags=0)),
    ),
)
