"""The follower of a run: its status, and its lines about silence, absence and the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.observability.status_follower import AWAY, PATIENCE_S, StatusFollower, timeless_document
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.mqtt.events import Connected, Disconnected, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Body, Claim, CoordinatorState, Envelope
from fedpatch.shared.wire.run_status import DeviceStatus
from tests.coordinator.observability.statuses import collecting
from tests.shared.arbitrary_messages import envelopes
from tests.support.examples import examples

PRESENCE, PROGRESS = topics.coordinator_state("home"), topics.run_status("home")
DEVICE = DeviceStatus("pi-1", State.TRAINING, "", 0.5)
SEEN = collecting(DEVICE, eta_s=30.0).status
LATER = PATIENCE_S + 1.0


def received(body: Body, run: str = "run-1", topic: str = PROGRESS) -> Received:
    return Received(topic, encode(Envelope(body, run=run, round=3)), False)


def there(boot: str = "b1", *, online: bool = True) -> Received:
    return received(CoordinatorState(online, boot), "", PRESENCE)


STATUS = received(SEEN)
OVER = received(collecting(stopped="target_ua").status)


@pytest.fixture
def follower() -> StatusFollower:
    """A follower that has been connected since second 0."""
    return StatusFollower("home", "broker.local:1883", 0.0)


@pytest.fixture
def following(follower: StatusFollower) -> StatusFollower:
    """A follower that received the coordinator's presence at second 0, and its status at second 1."""
    follower.take(there(), 0.0)
    follower.take(STATUS, 1.0)
    return follower


def test_status_is_the_last_one_with_times_moved_on(follower):
    assert follower.message(0.0) is None
    assert follower.take(STATUS, 10.0) == []
    shown: Any = follower.message(14.0)
    assert (shown.run, shown.round, shown.status.devices, shown.status.phase) == ("run-1", 3, (DEVICE,), "collecting")
    assert (shown.status.elapsed_s, shown.status.eta_s) == (SEEN.elapsed_s + 4.0, 26.0)


def test_silence_from_the_start_is_explained_once(follower):
    assert follower.tick(PATIENCE_S - 1.0) == []
    (line,) = follower.tick(LATER)
    assert "no coordinator is at work for it, the fleet has another name" in line
    assert "fedpatch broker acl --watcher USER" in line
    assert follower.tick(LATER + 100.0) == []


def test_silence_of_an_online_coordinator_is_explained_by_version_or_permission(follower):
    follower.take(there(), 1.0)
    (line,) = follower.tick(LATER + 1.0)
    assert "of a version that cannot be watched" in line and PROGRESS in line


def test_offline_coordinator_is_reported_at_once(follower):
    assert follower.take(there(online=False), 0.1) == ["no coordinator is at work for fleet 'home'; waiting for one"]
    assert follower.alone
    assert follower.tick(LATER) == []
    follower.take(STATUS, LATER + 1.0)
    assert not follower.alone


def test_coordinator_that_dies_is_away_until_it_is_back(following):
    assert following.take(there(online=False), 2.0) == ["the coordinator is gone; waiting for it to come back"]
    shown: Any = following.message(100.0)
    assert (shown.status.phase, shown.status.elapsed_s) == (AWAY, SEEN.elapsed_s)
    assert following.document()["coordinator"] == "away"
    assert following.tick(LATER) == []
    assert following.take(there(online=False), 50.0) == []
    assert "no coordinator is at work for it" in following.why_silent()
    assert following.take(there("b2"), 100.0) == ["the coordinator is back"]
    assert following.take(STATUS, 101.0) == []
    assert following.message(101.0).status.phase == "collecting"


def test_status_before_presence_reports_the_return_once(follower):
    """Messages of different topics can arrive in any order."""
    follower.take(STATUS, 1.0)
    follower.take(there(online=False), 2.0)
    assert follower.take(STATUS, 3.0) == ["the coordinator is back"]
    assert follower.take(there("b2"), 4.0) == []


def test_timeless_documents_differ_only_where_more_than_time_has_changed(follower):
    follower.take(STATUS, 1.0)
    first = follower.document()
    follower.take(received(collecting(DEVICE, elapsed_s=99.0, eta_s=1.0).status), 2.0)
    second = follower.document()
    assert first != second and timeless_document(first) == timeless_document(second)
    follower.take(there(online=False), 3.0)
    assert timeless_document(follower.document()) != timeless_document(second)


def test_last_will_of_an_older_boot_is_ignored(follower):
    follower.take(there("b2"), 0.0)
    follower.take(STATUS, 1.0)
    assert follower.take(there("b1", online=False), 2.0) == []
    assert follower.message(2.0).status.phase == "collecting"


def test_end_of_a_run_is_reported_once_and_its_silence_not(following):
    assert following.take(OVER, 2.0) == ["run run-1 is over: target reached"]
    assert following.take(OVER, 3.0) == []
    assert following.take(there(online=False), 4.0) == ["waiting for the next run"]
    assert following.message(4.0).status.phase == "over (target_ua)"
    assert following.tick(LATER + 4.0) == []
    assert following.take(received(SEEN, "run-2"), 50.0) == ["run run-2 has begun"]


def test_lost_and_restored_connection_are_reported_once(follower):
    follower.take(STATUS, 0.0)
    assert follower.take(Disconnected("it broke"), 1.0) == ["broker: it broke; trying again"]
    assert follower.take(Disconnected("connection refused"), 2.0) == []
    assert follower.tick(LATER) == []
    assert follower.take(Connected("5", None, True, False), 50.0) == ["connected to broker.local:1883 again"]
    assert follower.tick(50.0 + LATER) != []


@examples(25)
@given(st.lists(envelopes().map(encode) | st.binary(max_size=40), max_size=5), st.booleans())
def test_any_payload_is_accepted(payloads, on_presence):
    follower = StatusFollower("home", "broker.local:1883", 0.0)
    for payload in payloads:
        follower.take(Received(PRESENCE if on_presence else PROGRESS, payload, False), 1.0)
        follower.message(2.0)
        follower.document()


def test_status_on_another_topic_is_ignored(follower):
    follower.take(received(SEEN, topic=PRESENCE), 1.0)
    follower.take(received(Claim("b9"), topic=PRESENCE), 1.0)
    assert follower.message(2.0) is None
