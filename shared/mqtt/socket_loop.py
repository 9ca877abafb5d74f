"""Event loop of one socket, for a client that has no loop of its own (paho's external loop)."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol

# Interval of the client's keepalive check. Messages to send do not wait for it, because `wake` interrupts the wait.
TICK_S = 0.5


class LoopClient(Protocol):
    """The loop's view of a client. `socket()` is None once the connection has ended."""

    def socket(self) -> Any:
        """The open socket, plain or TLS."""

    def want_write(self) -> bool:
        """Return whether bytes wait to be written to the socket."""

    def loop_read(self) -> Any:
        """Read from the socket."""

    def loop_write(self) -> Any:
        """Write to the socket."""

    def loop_misc(self) -> Any:
        """Check the keepalive."""


class SocketLoop:
    """Loop that runs one client at a time in the calling thread. Any thread may call `wake`.

    It waits with epoll where available, which has no limit of 1024 file descriptors as select has.
    """

    def __init__(self) -> None:
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._woken = False
        self._wait_s = TICK_S

    def wait_at_most(self, seconds: float) -> None:
        """Make the next wait for the socket shorter than a tick; called by `turn`."""
        self._wait_s = min(self._wait_s, seconds)

    def wake(self) -> None:
        """Make the loop take its next turn now."""
        if self._woken:
            return
        self._woken = True
        # If the socket is full, the loop will wake anyway. If it is closed, the loop has ended.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def close(self) -> None:
        """Close the loop's own file descriptors."""
        self._wake_in.close()
        self._wake_out.close()

    def run(self, client: LoopClient, turn: Callable[[], bool]) -> None:
        """Read and write until the client's socket is closed, or until `turn`, called before each wait, returns False."""
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
                # The selector does not see bytes that TLS has decrypted already.
                decrypted = hasattr(sock, "pending") and sock.pending() > 0
                ready = {key.fileobj: mask for key, mask in selector.select(0 if decrypted else self._wait_s)}
                self._wait_s = TICK_S
                if self._wake_out in ready:
                    self._wake_out.recv(65_536)
                    # Reset before the turn, so that the turn handles messages of callers that found the flag still set.
                    self._woken = False
                if decrypted or ready.get(sock, 0) & selectors.EVENT_READ:
                    client.loop_read()
                if ready.get(sock, 0) & selectors.EVENT_WRITE:
                    client.loop_write()
                client.loop_misc()
