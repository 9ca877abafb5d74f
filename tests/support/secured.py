"""A mosquitto with the shipped configuration for production, and the certificates of a fleet for it.

fleet = Certified(tmp_path / "ca", "home").make("pi-1")
with SecuredMosquitto(fleet, rules("home", ["pi-1"])) as broker:
    client(broker.url, "any", tls=fleet.files("pi-1"))
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence

from fedpatch.shared.wire.topics import mosquitto_acl
from tests.support.brokers import HOST, PATIENCE_S, Mosquitto, free_port, listening
from tests.support.identities import Certified
from tests.support.paths import ROOT

CONFIGURATIONS = ROOT / "broker_config"
_INSTALLED, _KEPT = "/etc/mosquitto/fedpatch/", "/var/lib/mosquitto/"


class SecuredMosquitto(Mosquitto):
    """Runs `configuration` of broker_config with the rules `acl` and other paths and ports; `options` override its lines."""

    def __init__(
        self,
        certificates: Certified,
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
            assert shipped in text, f"{configuration} no longer has {shipped!r}"
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
        """Start it and wait until it answers on both ports."""
        super().start()
        until = time.monotonic() + PATIENCE_S
        while self._listens_twice and not listening(self.coordinator_port):
            if time.monotonic() > until:
                raise RuntimeError(f"mosquitto does not listen for the coordinator:\n{self.log}")
            time.sleep(0.01)

    def install_certificates(self) -> None:
        """Copy the CA's files that the broker needs, as an operator does; it reads them at a start and a reload."""
        of_ca = self.certificates.directory
        for name in ("ca.crt", "ca.crl", "broker/broker.crt", "broker/broker.key"):
            shutil.copy(of_ca / name, self.installed)

    def write_acl(self, acl: str) -> None:
        """Put new rules in place; they are read at a start and a reload."""
        self.acl_file.write_text(acl)
        self.acl_file.chmod(0o600)

    def reload(self) -> None:
        """Reload, as `systemctl reload` does. Returns at once: a broker reloads between two messages."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)


def rules(fleet: str, devices: Sequence[str], watchers: Sequence[str] = ()) -> str:
    """The access rules of a fleet whose members are known."""
    return mosquitto_acl(fleet, devices=list(devices), watchers=watchers)
