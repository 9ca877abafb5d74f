"""A fleet with certificates for tests: its CA, the broker that requires them, and the certificates of devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.pki.certificate_authority import BROKER, COORDINATOR, DEVICE, WATCHER, Authority
from fedpatch.shared.mqtt.tls_context import TlsFiles
from tests.support.brokers import HOST, Mosquitto

DAY_S = 86_400.0
VALID_DAYS = 25


@dataclass(frozen=True)
class Certified:
    """A CA in a directory; `now` is the time at which all its certificates are made, in Unix seconds (0: the present)."""

    directory: Path
    fleet: str = "kitchen"
    now: float = 0.0
    ca_days: int = 30

    def open(self) -> Authority:
        """Open the CA for changes; the caller closes it."""
        return Authority.create(self.directory, self.fleet, now=self.now or time.time(), days=self.ca_days)

    def make(self, *devices: str, watchers: Sequence[str] = (), days: int = VALID_DAYS) -> Certified:
        """Make the CA, and certificates of the broker, the coordinator, devices and watchers."""
        with self.open() as authority:
            now = self.now or time.time()
            authority.issue(BROKER, "broker", now=now, days=days, names=[HOST, "localhost"])
            authority.issue(COORDINATOR, "coordinator", now=now, days=days)
        for name in devices:
            self.device(name, days=days)
        for name in watchers:
            self.device(name, part=WATCHER, days=days)
        return self

    def device(self, name: str, *, part: str = DEVICE, days: int = VALID_DAYS, now: float = 0.0) -> TlsFiles:
        """Issue a new certificate for a device, in one file with its key, as the agent has it."""
        with self.open() as authority:
            issued = authority.issue(part, name, now=now or self.now or time.time(), days=days)
        path = self.directory / f"{name}.pem"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(issued.pair.certificate + issued.pair.key)
        return self.files(name)

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    def pair(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a member."""
        folder = self.directory / name
        if name == COORDINATOR:
            return folder / "client.crt", folder / "client.key"
        return folder.with_suffix(".pem"), folder.with_suffix(".pem")

    def files(self, name: str = "") -> TlsFiles:
        """Return the certificate and key of a member, and its CA file; without a name, the CA file only."""
        return TlsFiles(self.ca_file, *(self.pair(name) if name else (None, None)))

    def revoke(self, device: str) -> None:
        """Revoke a device in the record and in the revocation list; the broker has not read the list yet."""
        with self.open() as authority:
            authority.revoke(DEVICE, device, now=time.time())

    @property
    def options(self) -> str:
        """Lines of mosquitto's configuration: it requires certificates, and applies the revocation list."""
        lines = [f"cafile {self.ca_file}", f"crlfile {self.directory}/ca.crl", self.server]
        return "\n".join([*lines, "require_certificate true", "use_identity_as_username true"])

    @property
    def server(self) -> str:
        """Lines of mosquitto's configuration: the broker's own certificate."""
        place = self.directory / "broker"
        return f"certfile {place}/broker.crt\nkeyfile {place}/broker.key"

    def broker(self) -> Mosquitto:
        """A mosquitto for this fleet, not yet started."""
        return Mosquitto(self.options)


def url_of(broker: Mosquitto) -> str:
    return broker.url.replace("mqtt:", "mqtts:")
