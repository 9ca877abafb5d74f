"""The coordinator reports messages that the broker has dropped."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fedpatch.coordinator.runtime.broker_drops import BrokerDrops
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.wire.topics import BROKER_DROPS, down, mosquitto_acl
from tests.coordinator.runtime.test_connection import at_work, eventually
from tests.support.brokers import Mosquitto, client


def test_drops_since_the_first_count_are_reported_at_most_once_a_minute():
    drops = BrokerDrops()
    assert not drops.note("fedpatch/1/home/coord", b"7")
    found = []
    for now, payload in ((0.0, b"7"), (10.0, b"9"), (20.0, b"12"), (80.0, b"12"), (90.0, b"no number"), (150.0, b"2")):
        assert drops.note(BROKER_DROPS, payload)
        found.append(drops.take(now))
    remedy = "which are requested again: raise max_queued_messages and max_queued_bytes in mosquitto.conf"
    assert found == [
        "",
        f"the broker dropped 2 messages (2 in this run), {remedy}",
        "",
        f"the broker dropped 3 messages (5 in this run), {remedy}",
        "",
        f"the broker dropped 2 messages (7 in this run), {remedy}",
    ]


@pytest.mark.broker
@pytest.mark.medium
def test_coordinator_with_the_generated_rules_gets_the_count_of_a_real_broker():
    acl = mosquitto_acl("home", devices=["slow"])
    users = {"coordinator": "coordinator", "slow": "slow"}
    topic = down("home", "slow")
    with (
        Mosquitto("sys_interval 1\nmax_queued_messages 5", passwords=users, acl=acl) as broker,
        at_work(broker.url, user="coordinator") as coordinator,
    ):
        with client(broker.url, "slow", topic, username="slow", password="slow") as slow:
            while topic not in slow.topics:  # until it has subscribed
                coordinator.link.publish(topic, b"x")
                with suppress(TimeoutError):
                    slow.wait(Received, patience_s=0.1)
        assert eventually(lambda: coordinator.drops._count is not None)
        for _ in range(30):  # the broker keeps five of them for the absent device
            coordinator.link.publish(topic, b"x")
        assert eventually(lambda: coordinator.drops._dropped > 0)
        assert coordinator.drops.take(0.0).startswith("the broker dropped ")
