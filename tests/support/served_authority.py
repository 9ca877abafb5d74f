"""A fleet's CA whose server takes the requests of invited devices, in a thread."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path
from typing import Self

from fedpatch.coordinator.pki.certificate_authority import Authority
from fedpatch.coordinator.pki.enrolment_server import EnrolmentServer
from fedpatch.coordinator.pki.invitations import approve, invite
from fedpatch.shared.config.enrolment_word import PATH
from fedpatch.shared.config.listen_address import Address, parse_address

ANYWHERE = parse_address("127.0.0.1:0")


class ServedAuthority:
    """A CA in `directory`; its server runs from `with` to its end. `told` has the lines for the operator."""

    def __init__(self, directory: Path, fleet: str = "kitchen", address: Address = ANYWHERE) -> None:
        self.directory = directory
        self.told: list[str] = []
        self.body = b""
        Authority.create(directory, fleet, now=time.time()).close()
        self.server = EnrolmentServer(address, directory, lambda line: self.told.append(line))
        self._thread = threading.Thread(target=self.server.serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._thread.join()

    @property
    def address(self) -> Address:
        return self.server.address

    def invite(self, device: str, broker: str = "") -> str:
        """Return a word for a device."""
        with Authority.open(self.directory, now=time.time()) as authority:
            return invite(authority, device, now=time.time(), broker=broker, days=9, hours=1)

    def approve(self, device: str) -> str:
        """Approve the request of a device, and return its code."""
        with Authority.open(self.directory, now=time.time()) as authority:
            return approve(authority, device, time.time())

    def post(self, body: bytes, path: str = PATH, length: str = "") -> int:
        """Send a request; return the HTTP status, and keep the answer in `body`."""
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=20)
        try:
            connection.request("POST", path, body, {"Content-Length": length} if length else {})
            response = connection.getresponse()
            self.body = response.read()
            return response.status
        finally:
            connection.close()
