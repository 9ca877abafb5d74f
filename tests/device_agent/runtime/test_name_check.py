"""The look for another agent under a device's name, at a real broker."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.runtime.name_check import check_name
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.shared.config.load import load
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import DeviceState, Envelope
from tests.support.brokers import HOST, Mosquitto
from tests.support.byte_meter import Meter

ME = Identity("lab", "pi", "mine")


def settings_of(url: str) -> BrokerSettings:
    return load(BrokerSettings, file=None, environ={}, flags={"broker": url})


@pytest.mark.medium
@pytest.mark.broker
def test_name_is_in_use_while_another_start_of_it_is_online():
    answers, foreign = [], []
    with Mosquitto() as broker:
        answers.append(check_name(settings_of(broker.url), ME, ()).in_use)
        for online in (True, False):
            link = MqttLink(broker.url, client_id="twin", events=lambda _: None, clean_start=True)
            link.start()
            link.wait_connected(30.0)
            state = encode(Envelope(DeviceState(online=online, boot="other")))
            link.publish(topics.device_state("lab", "pi"), state, retain=True)
            link.stop(5.0)
            found = [check_name(settings_of(broker.url), ME, boots) for boots in ((), ("other",))]
            answers += [one.in_use for one in found]
            foreign += [one.is_foreign for one in found]
    assert answers == [False, True, False, False, False]
    assert foreign == [False, False, True, False], "a start that is over counts, if this directory does not have it"


def test_name_is_free_where_no_broker_answers():
    assert not check_name(settings_of("mqtt://127.0.0.1:1"), ME, ()).in_use


@pytest.mark.medium
@pytest.mark.broker
def test_look_for_the_name_tells_the_bytes_of_its_connection():
    with Mosquitto() as broker, Meter(broker.port) as meter:
        traffic = check_name(settings_of(f"mqtt://{HOST}:{meter.port}"), ME, ()).traffic
    assert (traffic.sent_bytes, traffic.received_bytes) == pytest.approx((meter.up, meter.down), rel=0.05)
