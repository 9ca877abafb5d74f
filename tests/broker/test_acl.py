"""Access rules by pattern, where a device's user name is its id, on a real mosquitto, judged by what is delivered.

Rules that list the devices are tried in test_matrix.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.topics import TOPICS, Topic, mosquitto_acl, transfer_id
from tests.support.brokers import Client, Mosquitto, client

pytestmark = pytest.mark.broker

DIGEST = "0123456789abcdef" * 4
OWNER, OTHER, COORDINATOR, WATCHER = "pi-1", "pi-2", "coordinator", "ann"
# By pattern, every user with a password is a device with that name: the coordinator and the watcher too.
PARTIES = {OWNER: {"device"}, OTHER: {"device"}, COORDINATOR: {"coordinator", "device"}, WATCHER: {"watcher", "device"}}
# Reads and writes everything, so that a test can see which messages the broker delivered.
AUDITOR = "auditor"
EXAMPLES: dict[str, str] = {
    row.name: row.pattern.format(fleet="home", device=OWNER, digest=DIGEST, transfer=transfer_id(DIGEST), index=0)
    for row in TOPICS
}


def members(row: Topic, *parties: str) -> set[str]:
    """Return the users of these parties; of the devices only the owner, if the topic has a device in its name."""
    own = {OWNER} if "{device}" in row.pattern else set(PARTIES)
    return {
        user
        for user, theirs in PARTIES.items()
        if theirs & {*parties} - {"device"} or ("device" in parties and user in own)
    }


@pytest.fixture
def guarded() -> Iterator[Mosquitto]:
    """A mosquitto with the generated rules; the password of each user is the user's name."""
    acl = mosquitto_acl("home", watchers=[WATCHER])
    acl += f"\nuser {AUDITOR}\ntopic readwrite #\n\npattern readwrite barrier/%u\n"
    with Mosquitto(acl=acl, passwords={user: user for user in (*PARTIES, AUDITOR)}) as broker:
        yield broker


@contextlib.contextmanager
def as_user(broker: Mosquitto, user: str, *filters: str) -> Iterator[Client]:
    """A client that has logged in as `user` and subscribed to `filters`."""
    with client(broker.url, user, *filters, username=user, password=user) as one:
        one.settle()
        yield one


def test_message_is_delivered_from_the_writer_of_its_topic_alone(guarded):
    """All users write on all topics, acknowledged by the broker or not; only the writers' messages are delivered."""
    with as_user(guarded, AUDITOR, "#") as auditor:
        for user in PARTIES:
            with as_user(guarded, user) as one:
                for name, topic in EXAMPLES.items():
                    assert one.link.publish(topic, f"{user} {name}".encode())
                one.settle()
        auditor.settle()
        came = {event.payload.decode() for event in auditor.seen if isinstance(event, Received)}
    delivered = {name: {user for user in PARTIES if f"{user} {name}" in came} for name in EXAMPLES}
    assert delivered == {row.name: members(row, row.writer) for row in TOPICS}


def test_message_is_delivered_to_the_readers_of_its_topic_alone(guarded):
    """All users subscribe to all topics, by name and by wildcard; only the readers get a message, retained or live."""
    delivered: dict[str, set[str]] = {name: set() for name in EXAMPLES}
    with as_user(guarded, AUDITOR) as auditor:
        for row in TOPICS:
            auditor.link.publish(EXAMPLES[row.name], b"kept", retain=row.retain)
        auditor.settle()
        for user in PARTIES:
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
    assert delivered == {row.name: members(row, *row.readers, *row.also_read_by) for row in TOPICS}


def test_both_sides_receive_by_their_own_filters(guarded):
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
