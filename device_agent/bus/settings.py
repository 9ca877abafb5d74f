"""Settings of `fedpatch-agent bus`, from a TOML file, $FEDPATCH_BUS_* and options."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from fedpatch.shared.config.fields import NAME_OR_EMPTY, Pattern, setting
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.mqtt.outbox import topic_pattern

_BUS = "Bus"
_SERVICE = "Predictions"
_bus, _service = (partial(setting, group=group) for group in (_BUS, _SERVICE))
TOPIC = Pattern(r"[^\s+#\0/$][^\s+#\0]{0,199}", "1 to 200 characters without +, # and space, not beginning with / or $")
_LINE = re.compile(r"\s*(\S+)\s*->\s*(\S+)\s*")
FORMS = ("device", "components", "off")


@dataclass(frozen=True, kw_only=True)
class BusSettings(BrokerSettings):
    """Settings of the bus: broker and identity, which have nothing to do with the fleet's, discovery, and predictions."""

    env_prefix: ClassVar[str] = "FEDPATCH_BUS_"
    former: ClassVar[Mapping[str, str]] = {
        "int8": "has no effect, since agents make no int8 models any more; delete it"
    }

    state_dir: Path = setting(Path("fedpatch-agent-state"), group=_BUS, help="State directory of the agent.")
    device_id: str = _bus("", pattern=NAME_OR_EMPTY, default_means="the agent's", help="Name of the device on the bus.")
    topic: str = _bus("fedpatch-bus", pattern=TOPIC, help="First level of the topics.")
    discovery: str = _bus(
        "device",
        choices=FORMS,
        help="Home Assistant's discovery: device, one message (2024.11 and later); components, one for each entity (earlier "
        "ones); off.",
    )
    discovery_prefix: str = _bus("homeassistant", pattern=TOPIC, help="First level of the discovery topics.")
    every_s: float = _bus(5.0, ge=0.1, le=3600.0, unit="seconds", help="Time between looks at the state.")
    switch: bool = _bus(True, help="Offer a switch that pauses the agent.")

    serve: tuple[str, ...] = _service(
        (),
        default_means="none",
        help="Predictions, each IN -> OUT: examples on topic IN (with + and #), outputs on topic OUT.",
    )
    task: str = _service("", default_means="the only one", help="Task whose personal model predicts.")

    def check(self) -> list[tuple[str, ...]]:
        """Check the topics of predictions."""
        return super().check() + self.refusals(serve=all_served)


@dataclass(frozen=True)
class ServedTopic:
    """Examples on topics that match `source`; outputs on `target`."""

    source: str
    target: str

    def takes(self, topic: str) -> bool:
        """Return whether a topic matches `source` (MQTT 5.0, section 4.7)."""
        if topic.startswith("$") and self.source.startswith(("+", "#")):
            return False  # section 4.7.2
        return topic_pattern((self.source,)).fullmatch(topic) is not None

    def covers(self, other: ServedTopic) -> bool:
        """Return whether each topic that matches the `source` of the other one matches this `source`."""
        endless = other.source.endswith("#") and not self.source.endswith("#")
        return not endless and self.takes(other.source.removesuffix("/#"))


def served(line: str) -> ServedTopic:
    """Read IN -> OUT.

    Raises:
        UsageError: The line has another form, a topic is invalid, or the outputs would be taken as examples.

    Example:
        >>> served("sensors/vibration/# -> home/vibration").takes("sensors/vibration/pump")
        True
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise UsageError(f"{line!r} is not IN -> OUT, such as sensors/vibration -> home/vibration/prediction")
    service = ServedTopic(*match.groups())
    levels = service.source.split("/")
    if "#" in levels[:-1] or any(set("+#") & set(level) and len(level) > 1 for level in levels):
        raise UsageError(f"{service.source!r} is no filter of topics: + and # are whole levels, and # is the last one")
    if not re.fullmatch(TOPIC.regex, service.target):
        raise UsageError(f"{service.target!r} is no topic: it must be {TOPIC.words}")
    _require_apart(service, service)
    return service


def all_served(lines: Sequence[str]) -> list[ServedTopic]:
    """Read lines IN -> OUT. UsageError for a wrong line, or if outputs of one would be taken as examples by another."""
    services = [served(line) for line in lines]
    for one, other in itertools.permutations(services, 2):
        _require_apart(one, other)
    return services


def _require_apart(service: ServedTopic, other: ServedTopic) -> None:
    if service.takes(other.target):
        raise UsageError(f"{other.target!r} matches {service.source!r}, so outputs would be taken for examples")
