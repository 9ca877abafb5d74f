"""Home Assistant's MQTT discovery of a device: its entities, as one message or as one for each.

https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpatch.shared import __version__

ONLINE, OFFLINE = "online", "offline"
ON, OFF = "ON", "OFF"


@dataclass(frozen=True)
class BusTopics:
    """The topics of one device on the bus.

    Args:
        prefix: First level.
        fleet: Name of the fleet.
        device: Id of the device.
    """

    prefix: str
    fleet: str
    device: str

    @property
    def id(self) -> str:
        """Id of the device in Home Assistant."""
        return f"fedpatch_{self.fleet}_{self.device}"

    @property
    def state(self) -> str:
        """Topic of the state, retained JSON."""
        return f"{self.prefix}/{self.fleet}/{self.device}/state"

    @property
    def availability(self) -> str:
        """Topic of `online` and, by the last will, `offline`; retained."""
        return f"{self.prefix}/{self.fleet}/{self.device}/availability"

    @property
    def may_work(self) -> str:
        """Topic of the commands ON and OFF."""
        return f"{self.prefix}/{self.fleet}/{self.device}/may-work/set"


def discovery(topics: BusTopics, prefix: str, form: str, *, switch: bool) -> dict[str, dict[str, Any]]:
    """Return the retained discovery messages by topic; an empty one is cleared.

    A switch that is not offered may be known from an earlier start. Home Assistant removes a component of a device if only its
    platform is left, and an entity if its message is cleared.

    Args:
        prefix: First level of the discovery topics.
        form: "device", "components" or "off".
        switch: Whether the agent can be paused.
    """
    parts = components(topics)
    if not switch:
        parts["may_work"] = {"platform": parts["may_work"]["platform"]}
    shared = {
        "device": {
            "identifiers": [topics.id],
            "name": f"fedpatch {topics.device}",
            "manufacturer": "fedpatch",
            "model": f"device of fleet {topics.fleet}",
            "sw_version": __version__,
        },
        "origin": {"name": "fedpatch", "sw_version": __version__},
        "availability": [{"topic": topics.availability}],
        "state_topic": topics.state,
    }
    if form == "device":
        whole = {**shared, "components": {f"{topics.id}_{key}": part for key, part in parts.items()}}
        return {f"{prefix}/device/{topics.id}/config": whole}
    if form == "components":
        messages = {}
        for key, part in parts.items():
            values = {name: value for name, value in part.items() if name != "platform"}
            messages[f"{prefix}/{part['platform']}/{topics.id}/{key}/config"] = {**shared, **values} if values else {}
        return messages
    return {}


def components(topics: BusTopics) -> dict[str, dict[str, Any]]:
    """Return the entities by key, each with its platform."""

    def part(key: str, platform: str, name: str, **more: Any) -> dict[str, Any]:
        template = f"{{{{ value_json.{key} }}}}"
        return {
            "platform": platform,
            "unique_id": f"{topics.id}_{key}",
            "name": name,
            "value_template": template,
            **more,
        }

    measured: Mapping[str, str] = {"state_class": "measurement"}
    reasons = {
        "json_attributes_topic": topics.state,
        "json_attributes_template": "{{ {'reasons': value_json.reasons} | tojson }}",
    }
    return {
        "state": part("state", "sensor", "State", icon="mdi:school"),
        "user_accuracy": part("user_accuracy", "sensor", "User accuracy", icon="mdi:bullseye-arrow", **measured),
        "round": part("round", "sensor", "Round of the model", icon="mdi:counter"),
        "last_round": part("last_round", "sensor", "Last round", icon="mdi:check-network"),
        "examples": part("examples", "sensor", "Examples", icon="mdi:database", **measured),
        "willing": part("willing", "binary_sensor", "Willing", payload_on=ON, payload_off=OFF, **reasons),
        "may_work": part(
            "may_work",
            "switch",
            "May work",
            command_topic=topics.may_work,
            payload_on=ON,
            payload_off=OFF,
            state_on=ON,
            state_off=OFF,
        ),
    }
