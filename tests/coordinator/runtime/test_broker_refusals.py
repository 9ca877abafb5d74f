"""The coordinator reports connections that a full broker refuses, while devices are missing."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest

from fedpatch.coordinator.runtime.broker_refusals import BrokerRefusals
from fedpatch.shared.wire.topics import BROKER_CLIENTS, BROKER_CONNECTS, BROKER_OPENED, mosquitto_acl
from tests.coordinator.runtime.test_connection import at_work, eventually
from tests.support.brokers import Mosquitto, client


def counted(clients: bytes, opened: bytes, connects: bytes) -> BrokerRefusals:
    refusals = BrokerRefusals()
    assert not refusals.note("fedpatch/1/home/coord", b"7")
    for topic, payload in ((BROKER_CLIENTS, clients), (BROKER_OPENED, opened), (BROKER_CONNECTS, connects)):
        assert refusals.note(topic, payload)
    return refusals


def test_refused_connections_are_reported_once_in_ten_minutes_while_devices_are_missing():
    refusals = counted(b"1000", b"33.6", b"3.2")
    assert refusals.take(0.0, short_of_devices=False) == ""
    line = "the broker holds 1000 clients and closed 30 new connections in the last minute unread: if devices are among them, "
    line += "raise max_connections in mosquitto.conf and LimitNOFILE of its unit"
    found = [refusals.take(now, short_of_devices=True) for now in (1.0, 600.0, 601.0)]
    assert found == [line, "", line]


@pytest.mark.parametrize(("opened", "connects"), [(b"3.20", b"3.20"), (b"5.9", b"3"), (b"3", b"30"), (b"many", b"3")])
def test_rates_without_a_surplus_of_opened_connections_report_nothing(opened, connects):
    assert counted(b"5", opened, connects).take(0.0, short_of_devices=True) == ""


@pytest.mark.broker
@pytest.mark.medium
def test_coordinator_with_the_generated_rules_notices_that_a_full_broker_refuses_devices():
    acl = mosquitto_acl("home", devices=["a"])
    users = {"coordinator": "coordinator", "a": "a"}
    with (
        Mosquitto("sys_interval 1\nmax_connections 1", passwords=users, acl=acl) as broker,
        at_work(broker.url, user="coordinator") as coordinator,
        ExitStack() as refused,
    ):
        for number in range(8):
            refused.enter_context(client(broker.url, f"a{number}", username="a", password="a"))
        assert eventually(lambda: coordinator.refusals.take(math.inf, short_of_devices=True) != "")
