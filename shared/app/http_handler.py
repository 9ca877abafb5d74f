"""Handler of HTTP requests for servers that serve one client after the other: no client keeps the next one waiting for long."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR, socket
from typing import ClassVar


class LimitedHandler(BaseHTTPRequestHandler):
    """Ends the connection of a client after `timeout` seconds, which a subclass sets, and logs no requests."""

    timeout: ClassVar[float]
    server_version = "fedpatch"
    sys_version = ""

    def setup(self) -> None:
        """Limit the time of a client, also of one that sends byte by byte, since the next one waits."""
        super().setup()
        self._limit = threading.Timer(self.timeout, _hang_up, (self.connection,))
        self._limit.daemon = True
        self._limit.start()

    def finish(self) -> None:
        """End the time limit."""
        self._limit.cancel()
        super().finish()

    def send(self, status: int, content_type: str, body: bytes) -> None:
        """Send a whole response.

        Args:
            status: Code of HTTP.
            content_type: The header Content-Type.
            body: The content.
        """
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


def _hang_up(connection: socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(SHUT_RDWR)
