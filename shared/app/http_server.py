"""HTTP server and handler that serve one client after the other: no client keeps the next one waiting for long."""

from __future__ import annotations

import contextlib
import logging
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from typing import ClassVar

_log = logging.getLogger("fedpatch.http")


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
        """Send a whole response."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


class LimitedServer(socketserver.TCPServer):
    """Listens at an address; a failed request does not end it.

    Args:
        host: Address to listen on, of either family.
        port: 0 takes a free one.
        handler: Serves a request.

    Raises:
        OSError: The address is not available.
    """

    allow_reuse_address = True
    request_queue_size = 128  # a fleet's devices may all come at once

    def __init__(self, host: str, port: int, handler: type[LimitedHandler]) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), handler)
        self.port: int = self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a fault of this program; a client that disconnects is none."""
        expected = isinstance(sys.exc_info()[1], OSError)
        _log.log(logging.DEBUG if expected else logging.ERROR, "%s", client_address, exc_info=True)


def _hang_up(connection: socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(SHUT_RDWR)
