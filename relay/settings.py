"""Settings of a relay: in relay.toml, as $FEDPATCH_RELAY_*, as options of `fedpatch-relay run`."""

# ruff: noqa: RUF009  (what `setting_like` returns does not change)

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.fields import NAME, Settings, setting, setting_like
from fedpatch.shared.mqtt.broker_settings import BrokerSettings

_UP, _DOWN, _ROUND, _LIMITS = "Hub", "Site", "Rounds of the site", "Limits"
_upwards, _downwards, _round, _limit = (
    partial(setting_like, RunSettings, group=group) for group in (_UP, _DOWN, _ROUND, _LIMITS)
)

# The settings of a broker connection, with the fields of RelaySettings that have them.
_UPWARDS: Mapping[str, str] = {"broker": "up", "fleet": "up_fleet", "broker_profile": "up_broker_profile"}
_DOWNWARDS: Mapping[str, str] = {"broker": "down", "fleet": "fleet"}
_CONNECTION = ("username", "password", "password_file", "ca_file", "cert_file", "key_file", "accept_lax_ca", "insecure")


@dataclass(frozen=True, kw_only=True)
class RelaySettings(Settings):
    """`fedpatch-relay run`: the relay of one site."""

    env_prefix: ClassVar[str] = "FEDPATCH_RELAY_"
    common: ClassVar[frozenset[str]] = frozenset(
        {
            *("up", "up_fleet", "device_id", "up_username", "up_password_file"),
            *("up_ca_file", "up_cert_file", "up_insecure"),
            *("down", "fleet", "down_username", "down_password_file"),
            *("down_ca_file", "down_cert_file", "down_insecure"),
            *("task", "state_dir", "min_cohort", "quorum", "grace_s", "max_devices", "max_members"),
        }
    )

    up: str = setting(
        group=_UP,
        example="mqtts://hub.example",
        help="URL of the hub's broker, mqtts://HOST:PORT or mqtt:// (no TLS).",
    )
    up_fleet: str = _upwards("fleet", help="Fleet of the hub.")
    device_id: str = setting(
        group=_UP,
        pattern=NAME,
        example="site-7",
        help="Name of the relay as a device of the hub.",
    )
    up_username: str | None = _upwards("username", help="User name for the hub's broker.")
    up_password: str | None = _upwards("password", help="Password for the hub's broker.")
    up_password_file: Path | None = _upwards("password_file", help="File with that password, mode 0600.")
    up_ca_file: Path | None = _upwards("ca_file", help="Trusted CA certificate of the hub's broker, PEM.")
    up_cert_file: Path | None = _upwards("cert_file", help="Certificate of this device, PEM; it may contain the key.")
    up_key_file: Path | None = _upwards(
        "key_file", default_means="in up_cert_file", help="Key of up_cert_file, PEM, mode 0600."
    )
    up_accept_lax_ca: bool = _upwards("accept_lax_ca")
    up_insecure: bool = _upwards(
        "insecure", help="Allow mqtt:// to the hub's broker on another machine: the network can read everything."
    )
    up_broker_profile: str = _upwards("broker_profile")
    up_models_by_url: bool = setting_like(AgentSettings, "models_by_url", group=_UP)
    up_models_ca_file: Path | None = setting_like(
        AgentSettings, "models_ca_file", group=_UP, default_means="the system's, and up_ca_file"
    )

    down: str = _downwards("broker", help="URL of the site's broker; mqtt:// (no TLS) only on this machine.")
    fleet: str = _downwards("fleet", help="Fleet of the site's devices.")
    down_username: str | None = _downwards("username", help="User name for the site's broker.")
    down_password: str | None = _downwards("password", help="Password for the site's broker.")
    down_password_file: Path | None = _downwards("password_file", help="File with that password, mode 0600.")
    down_ca_file: Path | None = _downwards("ca_file", help="Trusted CA certificate of the site's broker, PEM.")
    down_cert_file: Path | None = _downwards("cert_file", help="Certificate of the site's coordinator, PEM.")
    down_key_file: Path | None = _downwards(
        "key_file", default_means="in down_cert_file", help="Key of down_cert_file, PEM, mode 0600."
    )
    down_accept_lax_ca: bool = _downwards("accept_lax_ca")
    down_insecure: bool = _downwards(
        "insecure", help="Allow mqtt:// to the site's broker on another machine: the network can read everything."
    )
    chunk_kib: int = _downwards("chunk_kib")
    models_store: str | None = _downwards("models_store")
    models_url: str | None = _downwards("models_url")

    task: str = _round("task", help="Task of hub and site, by name or as module:attribute.")
    state_dir: Path = _round(
        "state_dir", Path("fedpatch-relay-state"), help="Directory of unfinished work, rounds and devices of the site."
    )
    min_cohort: int = _round("min_cohort", help="Devices of the site that a request needs, and that must report.")
    quorum: float = _round("quorum", help="Share of the devices asked that must report.")
    grace_s: float = setting(
        10.0, group=_ROUND, ge=0.0, le=86_400.0, unit="seconds", help="Time for other devices after the quorum."
    )
    recruit_deadline_s: float = setting(
        10.0,
        group=_ROUND,
        gt=0.0,
        le=86_400.0,
        unit="seconds",
        help="Time to accept or decline, at most half of the round's.",
    )
    relay_margin_s: float = setting(
        10.0,
        group=_ROUND,
        ge=0.0,
        le=86_400.0,
        unit="seconds",
        help="Time of the hub's deadline that is left for the relay's own update, at most a fifth.",
    )

    max_model_mib: int = _limit("max_model_mib")
    max_devices: int = _limit("max_devices")
    max_members: int = _limit(
        "max_members",
        help="Most devices that one device of the site may speak for; 1: no relay below this one takes part.",
    )
    norm_bound: str = _limit("norm_bound")
    max_num_examples: str = _limit("max_num_examples")
    quarantine_after: int = _limit("quarantine_after")

    @property
    def upwards(self) -> BrokerSettings:
        """The connection to the hub's broker."""
        return BrokerSettings(**self._connection(_UPWARDS, "up_"))

    @property
    def downwards(self) -> RunSettings:
        """The coordinator of the site; the terms of a round are those of the hub's request."""
        return RunSettings(
            **self._connection(_DOWNWARDS, "down_"),
            task=self.task,
            state_dir=self.site_dir,
            chunk_kib=self.chunk_kib,
            models_store=self.models_store,
            models_url=self.models_url,
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
        """Directory of the agent's files: unfinished work for the hub."""
        return self.state_dir.absolute() / "device"

    def _connection(self, own: Mapping[str, str], prefix: str) -> dict[str, Any]:
        return {name: getattr(self, own.get(name, prefix + name)) for name in (*own, *_CONNECTION)}

    def check(self) -> list[tuple[str, ...]]:
        """Return the problems of both connections and of the site's coordinator, and of fields that depend on each other."""
        problems = [*super().check(), *_renamed(self.upwards, _UPWARDS, "up_")]
        # A relay has no setting for some terms of a run; they come from the hub's request.
        own = self.__dataclass_fields__
        problems += [one for one in _renamed(self.downwards, _DOWNWARDS, "down_") if one[0] in own]
        if (self.up, self.up_fleet) == (self.down, self.fleet):
            text = f"{self.fleet} at {self.down} is the hub's fleet too; give the site a fleet of its own"
            problems.append(("fleet", text, "up_fleet", "up", "down"))
        return problems


def _renamed(settings: BrokerSettings, own: Mapping[str, str], prefix: str) -> Iterator[tuple[str, ...]]:
    """Yield the problems of one side with the names of a relay's settings."""
    names = {**{name: prefix + name for name in _CONNECTION}, **own}
    flag = f"--{prefix.replace('_', '-')}insecure"
    for name, text, *others in settings.check():
        text = text.replace("--insecure (insecure = true)", flag).replace("with insecure", f"with {prefix}insecure")
        yield (names.get(name, name), text, *(names.get(one, one) for one in others))
