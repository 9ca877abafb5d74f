"""A fleet with certificates for tests: its CA, the broker that asks for them, and what devices show."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.pki.certificate_authority import BROKER, COORDINATOR, DEVICE, Authority
from fedpatch.shared.mqtt.tls_context import TlsFiles
from tests.support.brokers import HOST, Mosquitto

DAY_S = 86_400.0


@dataclass(frozen=True)
class Certified:
    """A CA in a directory; `now` is when everything of it is made, in unix seconds."""

    directory: Path
    fleet: str = "kitchen"
    now: float = 0.0
    ca_days: int = 30

    def open(self) -> Authority:
        """To be changed; closed again by whoever opened it."""
        return Authority.create(self.directory, self.fleet, now=self.now or time.time(), days=self.ca_days)

    def make(self, *devices: str, days: int = 20) -> Certified:
        """The CA, the broker's certificate, the coordinator's, and those of devices."""
        with self.open() as authority:
            now = self.now or time.time()
            authority.issue(BROKER, "broker", now=now, days=days, names=[HOST, "localhost"])
            authority.issue(COORDINATOR, "coordinator", now=now, days=days)
        for device in devices:
            self.device(device, days=days)
        return self

    def device(self, name: str, *, days: int = 20, now: float = 0.0) -> TlsFiles:
        """A new certificate for a device, with its key in one file, as the agent has it."""
        with self.open() as authority:
            issued = authority.issue(DEVICE, name, now=now or self.now or time.time(), days=days)
        path = self.directory / f"{name}.pem"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(issued.pair.certificate + issued.pair.key)
        return self.files(name)

    def files(self, name: str) -> TlsFiles:
        """What a device shows, and whom it trusts."""
        path = self.directory / f"{name}.pem"
        return TlsFiles(self.directory / "ca.crt", path, path)

    def revoke(self, device: str) -> None:
        """In the record and in the list; the broker has not read it."""
        with self.open() as authority:
            authority.revoke(DEVICE, device, now=time.time())

    @property
    def options(self) -> str:
        """Lines of mosquitto's configuration: it asks for certificates, and heeds the list."""
        lines = {
            "cafile": "ca.crt",
            "certfile": "broker/broker.crt",
            "keyfile": "broker/broker.key",
            "crlfile": "ca.crl",
        }
        files = [f"{key} {self.directory / name}" for key, name in lines.items()]
        return "\n".join([*files, "require_certificate true", "use_identity_as_username true"])

    def broker(self) -> Mosquitto:
        """A mosquitto for this fleet, not yet started."""
        return Mosquitto(self.options)


def url_of(broker: Mosquitto) -> str:
    return broker.url.replace("mqtt:", "mqtts:")
