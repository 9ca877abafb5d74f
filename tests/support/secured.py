"""A mosquitto with the configuration for production as it ships, and the certificates of a fleet to go with it.

with members("home", tmp_path, devices=["pi-1"]) as fleet, SecuredMosquitto(fleet) as broker:
    client(broker.url, "any", **fleet.login("pi-1"))
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from fedpatch.coordinator.pki.certificate_authority import BROKER, COORDINATOR, DEVICE, WATCHER, Authority
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.support.brokers import HOST, PATIENCE_S, Mosquitto, free_port, listening
from tests.support.paths import ROOT

CONFIGURATIONS = ROOT / "broker_config"
_INSTALLED, _KEPT = "/etc/mosquitto/fedpatch/", "/var/lib/mosquitto/"


class Certificates:
    """The CA of a fleet in a directory, and a key and a certificate for each of its members."""

    def __init__(
        self, directory: Path, fleet: str = "home", *, devices: Sequence[str] = (), watchers: Sequence[str] = ()
    ) -> None:
        self.directory, self.fleet = directory, fleet
        parts = [(DEVICE, name) for name in devices] + [(WATCHER, name) for name in watchers]
        with Authority.create(directory, fleet, now=time.time()) as authority:
            authority.issue(BROKER, "broker", now=time.time(), names=[HOST, "localhost"])
            for part, name in [(COORDINATOR, "coordinator"), *parts]:
                pair = authority.issue(part, name, now=time.time()).pair
                for suffix, data in (("crt", pair.certificate), ("key", pair.key)):
                    path = directory / f"{name}.{suffix}"
                    path.touch(mode=0o600)
                    path.write_bytes(data)

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    def pair(self, name: str) -> tuple[Path, Path]:
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def revoke(self, device: str) -> None:
        with Authority.open(self.directory, now=time.time()) as authority:
            authority.revoke(DEVICE, device, now=time.time())


class SecuredMosquitto(Mosquitto):
    """Runs `configuration` of broker_config, its paths and ports replaced, with the rules `acl`; `options` replace its own."""

    def __init__(
        self,
        certificates: Certificates,
        acl: str,
        *,
        configuration: str = "mosquitto.conf",
        passwords: dict[str, str] | None = None,
        options: str = "",
    ) -> None:
        super().__init__(passwords=passwords)
        self.certificates = certificates
        self.coordinator_port = next(port for _ in range(100) if (port := free_port()) != self.port)
        self.installed = self.directory / "installed"
        self.installed.mkdir()
        self.acl_file = self.installed / "fedpatch.acl"
        self.write_acl(acl)
        self.install_certificates()
        if passwords:
            shutil.copy(self.directory / "passwords", self.installed / "passwords")
        text = (CONFIGURATIONS / configuration).read_text("utf-8")
        for shipped, ours in (
            (_INSTALLED, f"{self.installed}/"),
            (_KEPT, f"{self.directory}/"),
            ("listener 8883\n", f"listener {self.port} {HOST}\n"),
            (f"listener 8884 {HOST}\n", f"listener {self.coordinator_port} {HOST}\n"),
            ("log_dest syslog\n", "log_dest stderr\n"),
        ):
            assert shipped in text, f"{configuration} no longer says {shipped!r}"
            text = text.replace(shipped, ours)
        self._listens_twice = str(self.coordinator_port) in text
        self._config.write_text(f"user root\n{text}\n{options}\n")

    @property
    def url(self) -> str:
        return f"mqtts://{HOST}:{self.port}"

    @property
    def coordinator_url(self) -> str:
        return f"mqtts://{HOST}:{self.coordinator_port}"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text("utf-8", errors="replace")

    def start(self) -> None:
        """Run it until it answers on both ports."""
        super().start()
        until = time.monotonic() + PATIENCE_S
        while self._listens_twice and not listening(self.coordinator_port):
            if time.monotonic() > until:
                raise RuntimeError(f"mosquitto does not listen for the coordinator:\n{self.log}")
            time.sleep(0.01)

    def install_certificates(self) -> None:
        """Copy what the broker needs of the CA, as an operator does; it is read at a start and a reload."""
        of_ca = self.certificates.directory
        for path in (
            of_ca / "ca.crt",
            of_ca / "ca.crl",
            of_ca / "broker" / "broker.crt",
            of_ca / "broker" / "broker.key",
        ):
            shutil.copy(path, self.installed / path.name)

    def write_acl(self, acl: str) -> None:
        """Put new rules in place; they are read at a start and a reload."""
        self.acl_file.write_text(acl)
        self.acl_file.chmod(0o600)

    def reload(self) -> None:
        """What `systemctl reload` does. Returns at once: a broker does it between two messages."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)


def rules(fleet: str, devices: Sequence[str], watchers: Sequence[str] = ()) -> str:
    """The access rules of a fleet whose members are known."""
    return mosquitto_acl(fleet, devices=list(devices), watchers=watchers)
