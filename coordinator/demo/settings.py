"""Settings of `fedpatch demo`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from fedpatch.coordinator.settings import ROUNDS, RoundSettings, RunSettings
from fedpatch.shared.config.fields import setting
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.url import parse_broker_url


@dataclass(frozen=True, kw_only=True)
class DemoSettings(RoundSettings):
    """Settings of a demo: rounds, devices, and a broker unless the built-in one is used."""

    common: ClassVar[frozenset[str]] = RoundSettings.common | {"out", "broker"}

    devices: int = setting(10, group=ROUNDS, ge=1, le=1000, unit="devices", help="Number of devices to start.")
    target_ua: float | None = setting(
        0.97,
        group=ROUNDS,
        default_means="0.97 for accuracy, else none",
        help="Mean user accuracy that ends the run earlier; none: never.",
    )
    out: Path = setting(Path("fedpatch-demo"), group="Demo", help="Directory for the state of coordinator and devices.")
    broker: str | None = setting(
        None, group="Demo", default_means="one that the demo starts", help="URL of an MQTT broker."
    )

    def check(self) -> list[tuple[str, ...]]:
        """Check the broker's URL, and that the fleet has the devices that a round needs."""
        problems = super().check()
        try:
            url = parse_broker_url(self.broker or "mqtt://localhost")
        except UsageError as error:
            problems.append(("broker", str(error)))
        else:
            if url.exposed:
                text = f"mqtt://{url} is another machine; write mqtts://, use a broker on this one, or leave it out"
                problems.append(("broker", text))
        if self.min_cohort > self.devices:
            text = (
                f"{self.min_cohort} is more than devices = {self.devices}, so every round would fail; make it smaller"
            )
            problems.append(("min_cohort", text, "devices"))
        if self.masked and self.devices < self.min_group:
            text = f"{self.devices} is fewer than a masked group has, min_group = {self.min_group}; make it larger"
            problems.append(("devices", text, "secure"))
        return problems

    def run_settings(self, *, broker: str, state_dir: Path, fleet: str) -> RunSettings:
        """Return the settings of the demo's coordinator."""
        shared = {one.name: getattr(self, one.name) for one in fields(RoundSettings)}
        return RunSettings(**shared, broker=broker, state_dir=state_dir, fleet=fleet)
