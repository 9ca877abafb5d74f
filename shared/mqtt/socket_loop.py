"""Moves bytes between a socket and a client that does not do so itself (paho's external loop, for one)."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol

# A client's keepalive is looked after this often; messages to send do not wait for it (`wake`).
TICK_S = 0.5


class LoopClient(Protocol):
    """What the loop needs of a client. `socket()` is None once the connection has ended."""

    def socket(self) -> Any:
        """The open socket, plain or TLS."""

    def want_write(self) -> bool:
        """Whether bytes wait for the socket to take them."""

    def loop_read(self) -> Any:
        """Take what the socket has."""

    def loop_write(self) -> Any:
        """Give the socket what it takes."""

    def loop_misc(self) -> Any:
        """Look after the keepalive."""


class SocketLoop:
    """Runs one client at a time in the calling thread; `wake` may be called from any thread.

    It waits with epoll where there is one, which select's limit of 1024 file descriptors does not concern.
    """

    def __init__(self) -> None:
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._woken = False

    def wake(self) -> None:
        """Make the loop take its next turn now; one that is to take it already is not told again."""
        if self._woken:
            return
        self._woken = True
        # Full: it will wake anyway. Closed: it has ended.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def close(self) -> None:
        """Give back the loop's own file descriptors."""
        self._wake_in.close()
        self._wake_out.close()

    def run(self, client: LoopClient, turn: Callable[[], bool]) -> None:
        """Move bytes until the client's socket is gone or `turn`, called before each wait, is False."""
        sock = client.socket()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ)
            if sock is not None:
                selector.register(sock, selectors.EVENT_READ)
            awaited = selectors.EVENT_READ
            while client.socket() is not None and turn() and client.socket() is not None:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.want_write() else 0)
                if wanted != awaited:
                    selector.modify(sock, wanted)
                    awaited = wanted
                # What TLS has decrypted already does not show on the socket.
                decrypted = hasattr(sock, "pending") and sock.pending() > 0
                ready = {key.fileobj: mask for key, mask in selector.select(0 if decrypted else TICK_S)}
                if self._wake_out in ready:
                    self._wake_out.recv(65_536)
                    # Before the turn: whoever puts something down and finds this still set is looked after by that turn.
                    self._woken = False
                if decrypted or ready.get(sock, 0) & selectors.EVENT_READ:
                    client.loop_read()
                if ready.get(sock, 0) & selectors.EVENT_WRITE:
                    client.loop_write()
                client.loop_misc()
