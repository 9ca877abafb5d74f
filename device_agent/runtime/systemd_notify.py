"""Notifies systemd of the agent's state (sd_notify(3)).

A service of Type=notify reports to systemd that it is ready, alive or stopping, and its status: by a datagram of lines
`KEY=value` to the socket that $NOTIFY_SOCKET names. If the loop hangs, it sends no WATCHDOG=1, and systemd kills and restarts
the agent. Without $NOTIFY_SOCKET nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_PATIENCE_S = 1.0

_log = logging.getLogger("fedpatch.service")


class ServiceManager:
    """Connection to systemd.

    Args:
        address: Socket of the service manager, "" for none.
        watchdog_s: Longest silence before systemd restarts the service; 0 for no watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._every_s = watchdog_s / 2 if address else 0.0
        self._alive_at: float | None = None
        self._status = ""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """Read the connection from the environment, and remove its variables so that no child process inherits them."""
        address, every_us, pid = (environ.pop(name, "") for name in _VARIABLES)
        ours = every_us.isdecimal() and (not pid or pid == str(os.getpid()))
        return cls(address, int(every_us) / 1e6 if ours else 0.0)

    def doing(self, status: str, now: float) -> None:
        """Send the status if it is new; the first call also reports that the service is ready."""
        if self._alive_at is None:
            self._alive_at = now
            self._send("READY=1", f"STATUS={status}")
        elif status != self._status:
            self._send(f"STATUS={status}")
        self._status = status

    def tick(self, now: float) -> None:
        """Send WATCHDOG=1 twice as often as systemd demands."""
        due = self.next_deadline()
        if due is not None and now >= due:
            self._alive_at = now
            self._send("WATCHDOG=1")

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due."""
        return self._alive_at + self._every_s if self._alive_at is not None and self._every_s else None

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        message = "\n".join(" ".join(line.split()) for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.settimeout(_PATIENCE_S)
                one.sendto(message.encode(), self._address)
        except OSError as error:
            _log.debug("cannot send %s to systemd: %s", lines, error)
