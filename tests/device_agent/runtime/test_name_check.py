"""The look for another agent under a device's name, at a real broker."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.runtime.name_check import is_name_in_use
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.shared.config.load import load
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import DeviceState, Envelope
from tests.support.brokers import Mosquitto

ME = Identity("lab", "pi", "mine")


def settings_of(url: str) -> BrokerSettings:
    return load(BrokerSettings, file=None, environ={}, flags={"broker": url})


@pytest.mark.medium
@pytest.mark.broker
def test_name_is_in_use_while_another_start_of_it_is_online():
    answers = []
    with Mosquitto() as broker:
        answers.append(is_name_in_use(settings_of(broker.url), ME, ()))
        for online in (True, False):
            link = MqttLink(broker.url, client_id="twin", events=lambda _: None, clean_start=True)
            link.start()
            link.wait_connected(30.0)
            state = encode(Envelope(DeviceState(online=online, boot="other")))
            link.publish(topics.device_state("lab", "pi"), state, retain=True)
            link.stop(5.0)
            answers += [is_name_in_use(settings_of(broker.url), ME, boots) for boots in ((), ("other",))]
    assert answers == [False, True, False, False, False]


def test_name_is_free_where_no_broker_answers():
    assert not is_name_in_use(settings_of("mqtt://127.0.0.1:1"), ME, ())
