"""Settings of a relay: in relay.toml, as $FEDPATCH_RELAY_*, as options of `fedpatch-relay run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedpatch.coordinator.aggregation.limit_settings import parse_examples_cap, parse_norm_bound
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.fields import NAME, Settings, setting
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.tasks.task import TASKS
from fedpatch.shared.wire.chunked_transfer import DEFAULT_CHUNK_KIB

_UP, _DOWN, _ROUND, _LIMITS = "Parent", "Site", "Rounds of the site", "Limits"
_NO_FILE: Path | None = None

# The settings of a broker connection, with the fields of RelaySettings that have them.
_UPWARDS: Mapping[str, str] = {"broker": "up", "fleet": "up_fleet"}
_DOWNWARDS: Mapping[str, str] = {"broker": "down", "fleet": "fleet"}
_CONNECTION = ("username", "password", "password_file", "ca_file", "cert_file", "key_file", "insecure")


@dataclass(frozen=True, kw_only=True)
class RelaySettings(Settings):
    """`fedpatch-relay run`: the relay of one site."""

    env_prefix: ClassVar[str] = "FEDPATCH_RELAY_"

    up: str = setting(
        group=_UP,
        example="mqtts://hub.example",
        help="URL of the parent's broker, mqtts://HOST:PORT; mqtt:// (no TLS).",
    )
    up_fleet: str = setting(
        "default", group=_UP, pattern=NAME, help="Fleet of the parent in which the relay is a device."
    )
    device_id: str = setting(
        group=_UP,
        pattern=NAME,
        example="site-7",
        help="Name of the relay as a device of the parent, unique in its fleet.",
    )
    up_username: str | None = setting(None, group=_UP, help="User name for the parent's broker.")
    up_password: str | None = setting(None, group=_UP, secret=True, help="Password for the parent's broker.")
    up_password_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_UP, help="File with that password, mode 0600."
    )
    up_ca_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_UP, default_means="the system's", help="Trusted CA certificate of the parent's broker, PEM."
    )
    up_cert_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_UP, default_means="none", help="Certificate of this device, PEM; it may contain the key."
    )
    up_key_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_UP, default_means="in up_cert_file", help="Key of up_cert_file, PEM, mode 0600."
    )
    up_insecure: bool = setting(
        False,
        group=_UP,
        help="Allow mqtt:// to the parent's broker on another machine: the network can read everything.",
    )

    down: str = setting(
        "mqtt://127.0.0.1:1883", group=_DOWN, help="URL of the site's broker; mqtt:// (no TLS) only on this machine."
    )
    fleet: str = setting("default", group=_DOWN, pattern=NAME, help="Fleet of the site's devices.")
    down_username: str | None = setting(None, group=_DOWN, help="User name for the site's broker.")
    down_password: str | None = setting(None, group=_DOWN, secret=True, help="Password for the site's broker.")
    down_password_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_DOWN, help="File with that password, mode 0600."
    )
    down_ca_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_DOWN, default_means="the system's", help="Trusted CA certificate of the site's broker, PEM."
    )
    down_cert_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_DOWN, default_means="none", help="Certificate of the site's coordinator, PEM."
    )
    down_key_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        _NO_FILE, group=_DOWN, default_means="in down_cert_file", help="Key of down_cert_file, PEM, mode 0600."
    )
    down_insecure: bool = setting(
        False,
        group=_DOWN,
        help="Allow mqtt:// to the site's broker on another machine: the network can read everything.",
    )
    chunk_kib: int = setting(
        DEFAULT_CHUNK_KIB,
        group=_DOWN,
        ge=8,
        le=1024,
        unit="KiB",
        help="Size of a chunk in the site; less if its broker limits packets.",
    )

    task: str = setting("digits", group=_ROUND, help="Task, by name or as module:attribute; as in parent and site.")
    state_dir: Path = setting(  # noqa: RUF009  (a path does not change)
        Path("fedpatch-relay-state"), group=_ROUND, help="Directory of unfinished work, rounds and devices of the site."
    )
    min_cohort: int = setting(
        1,
        group=_ROUND,
        ge=1,
        le=100_000,
        unit="devices",
        help="Devices of the site that a request is accepted for, and that must report.",
    )
    quorum: float = setting(0.8, group=_ROUND, gt=0.0, le=1.0, help="Share of the site's devices that must report.")
    grace_s: float = setting(
        10.0, group=_ROUND, ge=0.0, le=86_400.0, unit="seconds", help="Time for other devices after the quorum."
    )
    recruit_deadline_s: float = setting(
        10.0,
        group=_ROUND,
        gt=0.0,
        le=86_400.0,
        unit="seconds",
        help="Time of the devices to accept or decline, at most half of the round's.",
    )
    relay_margin_s: float = setting(
        10.0,
        group=_ROUND,
        ge=0.0,
        le=86_400.0,
        unit="seconds",
        help="Time that is left of the parent's deadline for the relay's own update, at most a fifth of it.",
    )

    max_model_mib: int = setting(
        512, group=_LIMITS, ge=1, le=2048, unit="MiB", help="Largest accepted model or update."
    )
    max_devices: int = setting(
        10_000,
        group=_LIMITS,
        ge=1,
        le=1_000_000,
        unit="devices",
        help="Known devices of the site; further ones are not ones.",
    )
    max_members: int = setting(
        1,
        group=_LIMITS,
        ge=1,
        le=1_000_000,
        unit="devices",
        help="Most devices that one device of the site may speak for. 1: no relay below this one takes part.",
    )
    norm_bound: str = setting(
        "auto:2",
        group=_LIMITS,
        help="Bound of an update's distance from the model, as of `fedpatch run`; off, clip:X, reject:X, or auto:F.",
    )
    max_num_examples: str = setting(
        "auto:10",
        group=_LIMITS,
        help="Largest weight of an update, as of `fedpatch run`: off, a number of examples, auto:F.",
    )
    quarantine_after: int = setting(
        5, group=_LIMITS, ge=0, le=1_000_000, unit="offences", help="Offences of a device until quarantine; 0: never."
    )

    @property
    def upwards(self) -> BrokerSettings:
        """The connection to the parent's broker."""
        return BrokerSettings(**self._connection(_UPWARDS, "up_"))

    @property
    def downwards(self) -> RunSettings:
        """The coordinator of the site; the terms of a round are those of the parent's request."""
        return RunSettings(
            **self._connection(_DOWNWARDS, "down_"),
            task=self.task,
            state_dir=self.site_dir,
            chunk_kib=self.chunk_kib,
            max_model_mib=self.max_model_mib,
            max_devices=self.max_devices,
            max_members=self.max_members,
            norm_bound=self.norm_bound,
            max_num_examples=self.max_num_examples,
            quarantine_after=self.quarantine_after,
            min_cohort=self.min_cohort,
            quorum=self.quorum,
            grace_s=self.grace_s,
            independent_every=0,
            max_failed_rounds=1,
            metrics=None,
        )

    @property
    def site_dir(self) -> Path:
        """Directory of the coordinator's files: registry and rounds of the site."""
        return self.state_dir.absolute() / "site"

    @property
    def device_dir(self) -> Path:
        """Directory of the agent's files: unfinished work for the parent."""
        return self.state_dir.absolute() / "device"

    def _connection(self, own: Mapping[str, str], prefix: str) -> dict[str, Any]:
        return {name: getattr(self, own.get(name, prefix + name)) for name in (*own, *_CONNECTION)}

    def check(self) -> list[tuple[str, ...]]:
        """Return the problems of both connections, names that must exist, and fields that depend on each other."""
        problems = super().check() + self.refusals(
            task=TASKS.check_name, norm_bound=parse_norm_bound, max_num_examples=parse_examples_cap
        )
        problems += _renamed(self.upwards, _UPWARDS, "up_")
        problems += _renamed(BrokerSettings(**self._connection(_DOWNWARDS, "down_")), _DOWNWARDS, "down_")
        if (self.up, self.up_fleet) == (self.down, self.fleet):
            text = f"{self.fleet} at {self.down} is the parent's fleet too; give the site a fleet of its own"
            problems.append(("fleet", text, "up_fleet", "up", "down"))
        return problems


def _renamed(settings: BrokerSettings, own: Mapping[str, str], prefix: str) -> Iterator[tuple[str, ...]]:
    """Yield the problems of a connection with the names of a relay's settings."""
    for name, text, *others in settings.check():
        renamed = [own.get(one, prefix + one) for one in (name, *others)]
        yield (
            renamed[0],
            text.replace("--insecure (insecure = true)", f"--{prefix.replace('_', '-')}insecure"),
            *renamed[1:],
        )
