"""The access rules on a real mosquitto, proven by what is delivered: who may write which topic, and who gets to read it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.topics import TOPICS, mosquitto_acl
from tests.support.brokers import Client, Mosquitto, client

pytestmark = pytest.mark.broker

DIGEST = "0123456789abcdef" * 4
OWNER, OTHER, COORDINATOR, WATCHER, STRANGER = "pi-1", "pi-2", "coordinator", "ann", "stranger"
USERS = (OWNER, OTHER, COORDINATOR, WATCHER, STRANGER)
# Reads and writes everything, so that a test can see what was let through.
AUDITOR = "auditor"

EXAMPLES = {
    "coordinator_state": topics.coordinator_state("home"),
    "run_status": topics.run_status("home"),
    "device_state": topics.device_state("home", OWNER),
    "down": topics.down("home", OWNER),
    "up": topics.up("home", OWNER),
    "model_chunk": topics.model_chunk("home", DIGEST, 0),
    "update_chunk": topics.update_chunk("home", OWNER, DIGEST, 0),
}
WRITERS = {
    "coordinator_state": {COORDINATOR},
    "run_status": {COORDINATOR},
    "device_state": {OWNER},
    "down": {COORDINATOR},
    "up": {OWNER},
    "model_chunk": {COORDINATOR},
    "update_chunk": {OWNER},
}
READERS = {
    "coordinator_state": {OWNER, OTHER, COORDINATOR, WATCHER},
    "run_status": {WATCHER},
    "device_state": {COORDINATOR, OWNER},
    "down": {OWNER},
    "up": {COORDINATOR},
    "model_chunk": {OWNER, OTHER},
    "update_chunk": {COORDINATOR},
}
# By pattern, anyone with a password (the coordinator too) is a device of its own name, and devices may read these.
OPEN_TO_ANY_PASSWORD = {"coordinator_state", "model_chunk"}


@pytest.fixture(params=["listed", "pattern"])
def rules(request: pytest.FixtureRequest) -> str:
    """The two forms of the rules: devices listed by name, or a pattern over the user name."""
    form: str = request.param
    return form


@pytest.fixture
def guarded(rules: str) -> Iterator[Mosquitto]:
    """A mosquitto with the generated rules, every user's password being its name."""
    devices = [OWNER, OTHER] if rules == "listed" else None
    acl = mosquitto_acl("home", devices=devices, watchers=[WATCHER])
    acl += f"\nuser {AUDITOR}\ntopic readwrite #\n\npattern readwrite barrier/%u\n"
    with Mosquitto(acl=acl, passwords={user: user for user in (*USERS, AUDITOR)}) as broker:
        yield broker


@contextlib.contextmanager
def as_user(broker: Mosquitto, user: str, *filters: str) -> Iterator[Client]:
    """A client that has logged in as `user` and subscribed to `filters`."""
    with client(broker.url, user, *filters, username=user, password=user) as one:
        one.settle()
        yield one


def test_the_table_and_these_examples_name_the_same_topics():
    """A new topic needs an example, and a decision on who may write and read it."""
    assert set(EXAMPLES) == set(WRITERS) == set(READERS) == {row.name for row in TOPICS}


def test_only_the_writer_of_a_topic_can_write_it(guarded):
    """Everyone tries to write everything, acknowledged by the broker or not; only the writers' messages are delivered."""
    with as_user(guarded, AUDITOR, "#") as auditor:
        for user in USERS:
            with as_user(guarded, user) as one:
                for name, topic in EXAMPLES.items():
                    assert one.link.publish(topic, f"{user} {name}".encode())
                one.settle()
        auditor.settle()
        came = {event.payload.decode() for event in auditor.seen if isinstance(event, Received)}
    delivered = {name: {user for user in USERS if f"{user} {name}" in came} for name in EXAMPLES}
    assert delivered == WRITERS


def test_only_the_reader_of_a_topic_gets_to_read_it(guarded, rules):
    """Everyone subscribes to everything, by name and by wildcard; retained or live, only the readers get a message."""
    expected = {
        name: users
        | ({STRANGER, WATCHER, COORDINATOR} if rules == "pattern" and name in OPEN_TO_ANY_PASSWORD else set())
        for name, users in READERS.items()
    }
    delivered: dict[str, set[str]] = {name: set() for name in EXAMPLES}
    with as_user(guarded, AUDITOR) as auditor:
        for row in TOPICS:
            auditor.link.publish(EXAMPLES[row.name], b"kept", retain=row.retain)
        auditor.settle()
        for user in USERS:
            with as_user(guarded, user, *EXAMPLES.values(), "#", "fedpatch/1/home/#", "fedpatch/1/+/dev/+/+") as one:
                for row in TOPICS:
                    auditor.link.publish(EXAMPLES[row.name], b"live")
                auditor.settle()
                one.settle()
                for row in TOPICS:
                    came = {
                        event.payload
                        for event in one.seen
                        if isinstance(event, Received) and event.topic == EXAMPLES[row.name]
                    }
                    if came:
                        delivered[row.name].add(user)
                        assert came == ({b"kept", b"live"} if row.retain else {b"live"})
    assert delivered == expected


def test_both_ends_can_subscribe_as_they_do(guarded):
    """The filters that the two sides use in earnest bring them what they need."""
    filters = (*topics.device_filters("home", OWNER), topics.model_chunks_filter("home", DIGEST))
    with (
        as_user(guarded, OWNER, *filters) as device,
        as_user(guarded, COORDINATOR, *topics.coordinator_filters("home")) as coordinator,
    ):
        for name in ("device_state", "up", "update_chunk"):
            device.link.publish(EXAMPLES[name], b"")
            coordinator.received(EXAMPLES[name])
        device.received(EXAMPLES["device_state"])
        for name in ("coordinator_state", "down", "model_chunk"):
            coordinator.link.publish(EXAMPLES[name], b"")
            device.received(EXAMPLES[name])


def test_a_stranger_cannot_join_a_fleet_of_listed_devices(guarded, rules):
    """With a list, a password is not enough; with the pattern, it is: that is the difference between the two forms."""
    own = topics.device_state("home", STRANGER)
    with as_user(guarded, AUDITOR, "#") as auditor:
        with as_user(guarded, STRANGER) as stranger:
            stranger.link.publish(own, b"me too")
            stranger.settle()
        auditor.settle()
        assert (own in auditor.topics) == (rules == "pattern")
