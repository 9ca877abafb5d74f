"""Discovery messages: their form, and Home Assistant's own schemas if it is installed (`make extras`)."""

from __future__ import annotations

import importlib
import json
import warnings

import pytest

from fedpatch.device_agent.bus.home_assistant import BusTopics, components, discovery

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


@pytest.mark.parametrize("form", ["device", "components"])
def test_switch_that_is_not_offered_is_not_discovered(form):
    assert "may_work" not in json.dumps(discovery(TOPICS, "homeassistant", form, switch=False))


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
