"""HTTP server of `fedpatch ca serve`: takes the requests of invited devices, and hands out what the operator approved.

It reads and writes files of invitations only, never the CA's key. Clients are served one after the other, each within a time
limit, so strangers cost no memory. While a few of them connect and send nothing, devices get no answer and repeat their
request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedpatch.coordinator.pki.invitations import DIRECTORY, InvitationStore
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.app.formatting import minute
from fedpatch.shared.app.http_server import LimitedHandler, LimitedServer
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.config.enrolment_word import (
    ENDED,
    ISSUED,
    MAX_REQUEST_BYTES,
    PATH,
    UNKNOWN,
    USED,
    WAITING,
    SealedAnswer,
    code_to_compare,
    decode_request,
)
from fedpatch.shared.config.listen_address import Address
from fedpatch.shared.errors import DataError, StateError, UsageError

_CLIENT_LIMIT_S = 3.0
_HELD = "another `fedpatch ca serve` serves this CA; end it first"
_STATUS = {WAITING: 202, ISSUED: 200, UNKNOWN: 403, ENDED: 410, USED: 409}

_log = logging.getLogger("fedpatch.enrolment")


class EnrolmentServer:
    """Serves the invitations of a CA at http://HOST:PORT/enrol, in the thread that calls `serve`.

    Args:
        address: Address to listen on; port 0 takes a free one.
        ca_directory: Directory of the CA.
        tell: Is called with a line for the operator when a device asks for the first time.

    Raises:
        UsageError: The address is not available, or another process serves this CA.
    """

    def __init__(self, address: Address, ca_directory: Path, tell: Callable[[str], None]) -> None:
        place = ca_directory / DIRECTORY
        with refusals_of(place):
            place.mkdir(exist_ok=True, mode=0o700)
            self._lock = FileLock(place / "lock", _HELD)
        invitations = InvitationStore(ca_directory)

        class Handler(_EnrolmentHandler):
            replies = staticmethod(lambda data, sender: _reply(invitations, data, sender, tell))

        try:
            self._server = LimitedServer(address.host, address.port, Handler)
        except OSError as error:
            self._lock.release()
            raise UsageError(f"{address}: {error.strerror or error}; name another address with --listen") from error
        self.address = Address(address.host, self._server.port)

    def serve(self) -> None:
        """Serve until `stop` is called in another thread, or a signal raises."""
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._server.server_close()
            self._lock.release()

    def stop(self) -> None:
        """End `serve`."""
        self._server.shutdown()


def _reply(invitations: InvitationStore, data: bytes, sender: str, tell: Callable[[str], None]) -> SealedAnswer:
    """Return the reply to a request. Raises DataError where it is none, StateError where a file cannot be used."""
    asked = decode_request(data)
    is_new = invitations.received(asked.invitation) is None
    reply = invitations.take(asked, sender, time.time())
    invitation = invitations.named(asked.invitation)  # None if the operator refused it meanwhile
    if is_new and reply.state == WAITING and invitation is not None:
        code = code_to_compare(asked.request)
        tell(f"{minute(time.time())} {invitation.device} asks from {sender} with the code {code}")
    return reply


class _EnrolmentHandler(LimitedHandler):
    """Serves one request. The operator gets one line for each device that asks."""

    replies: Callable[[bytes, str], SealedAnswer]
    timeout = _CLIENT_LIMIT_S

    def do_POST(self) -> None:  # noqa: N802  (http.server calls it by this name)
        """Answer a device."""
        length = self.headers.get("Content-Length", "")
        if self.path != PATH or not length.isdecimal() or len(length) > 6 or int(length) > MAX_REQUEST_BYTES:
            self._send(400, b"")
            return
        try:
            reply = self.replies(self.rfile.read(int(length)), self.client_address[0])
        except DataError as error:
            _log.debug("%s: %s", self.client_address[0], error)
            self._send(400, b"")
        except StateError as error:
            _log.error("%s", error)
            self._send(503, b"")
        else:
            self._send(_STATUS[reply.state], msgspec.json.encode(reply))

    def _send(self, status: int, body: bytes) -> None:
        self.send(status, "application/json", body)
