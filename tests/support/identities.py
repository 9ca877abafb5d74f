"""A fleet with certificates for tests: its CA, the broker that asks for them, and what devices show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.pki.certificate_authority import BROKER, COORDINATOR, DEVICE, WATCHER, Authority
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
        """To be changed; closed again by its opener."""
        return Authority.create(self.directory, self.fleet, now=self.now or time.time(), days=self.ca_days)

    def make(self, *devices: str, watchers: Sequence[str] = (), days: int = 20) -> Certified:
        """The CA, and certificates of the broker, the coordinator, devices and watchers."""
        with self.open() as authority:
            now = self.now or time.time()
            authority.issue(BROKER, "broker", now=now, days=days, names=[HOST, "localhost"])
            authority.issue(COORDINATOR, "coordinator", now=now, days=days)
        for name in devices:
            self.device(name, days=days)
        for name in watchers:
            self.device(name, part=WATCHER, days=days)
        return self

    def device(self, name: str, *, part: str = DEVICE, days: int = 20, now: float = 0.0) -> TlsFiles:
        """A new certificate for a device, with its key in one file, as the agent has it."""
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
        """What a member shows, and whom it trusts; without a name it shows nothing."""
        return TlsFiles(self.ca_file, *(self.pair(name) if name else (None, None)))

    def revoke(self, device: str) -> None:
        """In the record and in the list; the broker has not read it."""
        with self.open() as authority:
            authority.revoke(DEVICE, device, now=time.time())

    @property
    def options(self) -> str:
        """Lines of mosquitto's configuration: it asks for certificates, and heeds the list."""
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
