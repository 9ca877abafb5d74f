"""Discovery messages: their form, and Home Assistant's own schemas if it is installed (`make extras`)."""

from __future__ import annotations

import importlib
import json
import warnings

import pytest

from fedpatch.device_agent.bus.home_assistant import BusTopics, components, discovery
from fedpatch.device_agent.bus.service import Bus
from fedpatch.device_agent.bus.settings import BusSettings
from fedpatch.shared.mqtt.client import Connected

TOPICS = BusTopics("fedpatch-bus", "kitchen", "pi-7")
SHARED = ("device", "origin", "availability", "state_topic")


def test_device_discovery_is_one_message_with_all_entities():
    (item,) = discovery(TOPICS, "homeassistant", "device", switch=True).items()
    topic, message = item
    assert topic == "homeassistant/device/fedpatch_kitchen_pi-7/config"
    assert {part["platform"] for part in message["components"].values()} == {"sensor", "binary_sensor", "switch"}
    ids = [part["unique_id"] for part in message["components"].values()]
    assert len(set(ids)) == len(ids) == 7
    assert message["availability"] == [{"topic": "fedpatch-bus/kitchen/pi-7/availability"}]
    assert json.dumps(message)


def test_component_discovery_has_the_same_entities_one_message_each():
    (whole,) = discovery(TOPICS, "homeassistant", "device", switch=True).values()
    single = discovery(TOPICS, "homeassistant", "components", switch=True)
    assert "homeassistant/switch/fedpatch_kitchen_pi-7/may_work/config" in single
    for part in whole["components"].values():
        topic = (
            f"homeassistant/{part['platform']}/fedpatch_kitchen_pi-7/{part['unique_id'].rpartition('pi-7_')[2]}/config"
        )
        assert {"platform": part["platform"], **single[topic]} == {**part, **{name: whole[name] for name in SHARED}}


def test_switch_that_is_no_longer_offered_is_removed_from_the_device():
    """Home Assistant keeps a component that is only left out, until it gets one with nothing but its platform."""
    (message,) = discovery(TOPICS, "homeassistant", "device", switch=False).values()
    assert message["components"]["fedpatch_kitchen_pi-7_may_work"] == {"platform": "switch"}
    assert len(message["components"]) == 7


def test_message_of_a_switch_that_is_no_longer_offered_is_cleared(tmp_path):
    """The broker retains the message of an earlier start."""
    published: dict[str, bytes] = {}
    settings = BusSettings(state_dir=tmp_path, device_id="pi-7", discovery="components", switch=False)
    bus = Bus(settings, TOPICS, lambda topic, payload, retain: published.update({topic: payload} if retain else {}))
    bus.take(Connected("5", max_packet_bytes=None, retain_available=True, session_present=False))
    assert published["homeassistant/switch/fedpatch_kitchen_pi-7/may_work/config"] == b""
    assert json.loads(published["homeassistant/sensor/fedpatch_kitchen_pi-7/state/config"])


def test_discovery_can_be_off():
    assert discovery(TOPICS, "homeassistant", "off", switch=True) == {}


@pytest.mark.parametrize("key", components(TOPICS))
def test_entity_fits_the_schema_of_home_assistant(key):
    """Home Assistant's strict schema of the platform: a message may have no key that Home Assistant would drop."""
    pytest.importorskip("homeassistant", reason="make extras")
    messages = discovery(TOPICS, "homeassistant", "components", switch=True)
    (message,) = (message for topic, message in messages.items() if topic.endswith(f"/{key}/config"))
    platform = components(TOPICS)[key]["platform"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its warnings about its own dependencies
        module = importlib.import_module(f"homeassistant.components.mqtt.{platform}")
    checked = module.DISCOVERY_SCHEMA(message)
    assert message.keys() <= checked.keys()


@pytest.mark.parametrize("key", components(TOPICS))
def test_template_of_an_entity_gives_its_value(key):
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Template(components(TOPICS)[key]["value_template"])
    assert template.render(value_json={key: "value"}) == "value"
