"""What a watcher is shown, and what it is told of silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.observability.snapshot import DeviceLine, status_of
from fedpatch.coordinator.observability.status_follower import AWAY, PATIENCE_S, StatusFollower, timeless
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.mqtt.events import Connected, Disconnected, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Body, Claim, CoordinatorState, Envelope
from tests.coordinator.observability.test_live_view import collecting
from tests.shared.arbitrary_messages import envelopes

PRESENCE, PROGRESS = topics.coordinator_state("home"), topics.run_status("home")
SEEN = collecting(DeviceLine("pi-1", State.TRAINING, "", 0.5), eta_s=30.0)
LATER = PATIENCE_S + 1.0


def told(body: Body, run: str = "run-1", topic: str = PROGRESS) -> Received:
    """A message."""
    return Received(topic, encode(Envelope(body, run=run, round=3)), False)


def there(boot: str = "b1", *, online: bool = True) -> Received:
    """What the coordinator says of itself."""
    return told(CoordinatorState(online, boot), "", PRESENCE)


STATUS = told(status_of(SEEN))
OVER = told(status_of(replace(SEEN, devices=()), "target_ua"))


@pytest.fixture
def onlooker() -> StatusFollower:
    """One that is connected since second 0."""
    return StatusFollower("home", "broker.local:1883", 0.0)


def test_the_picture_is_what_was_told_and_time_goes_on_in_it(onlooker):
    """Between two messages the seconds are counted here."""
    assert onlooker.picture(0.0) is None
    assert onlooker.take(STATUS, 10.0) == []
    seen: Any = onlooker.picture(14.0)
    assert (seen.run, seen.round, seen.devices, seen.phase) == ("run-1", 3, SEEN.devices, "collecting")
    assert (seen.elapsed_s, seen.eta_s) == (SEEN.elapsed_s + 4.0, 26.0)


def test_silence_from_the_beginning_is_explained_once(onlooker):
    """All that may be behind it, and how to mend the one thing that can be mended here."""
    assert onlooker.tick(PATIENCE_S - 1.0) == []
    (line,) = onlooker.tick(LATER)
    assert "no coordinator is at work for it, the fleet has another name" in line
    assert "fedpatch broker acl --watcher USER" in line
    assert onlooker.tick(LATER + 100.0) == []


def test_a_coordinator_that_is_there_and_silent_is_old_or_may_not_be_read(onlooker):
    """Its presence says that it is at work."""
    onlooker.take(there(), 1.0)
    (line,) = onlooker.tick(LATER + 1.0)
    assert "of a version that cannot be watched" in line and PROGRESS in line


def test_where_nobody_is_at_work_that_is_said_at_once(onlooker):
    """And nothing more while nobody comes."""
    assert onlooker.take(there(online=False), 0.1) == ["no coordinator is at work for fleet 'home'; waiting for one"]
    assert onlooker.alone
    assert onlooker.tick(LATER) == []
    onlooker.take(STATUS, LATER + 1.0)
    assert not onlooker.alone


def test_a_coordinator_that_dies_is_waited_for(onlooker):
    """Its last will says so; the picture stands still, and goes on when it is back."""
    onlooker.take(there(), 0.0)
    onlooker.take(STATUS, 1.0)
    assert onlooker.take(there(online=False), 2.0) == ["the coordinator is gone; waiting for it to come back"]
    seen: Any = onlooker.picture(100.0)
    assert (seen.phase, seen.elapsed_s) == (AWAY, SEEN.elapsed_s)
    assert onlooker.document()["coordinator"] == "away"
    assert onlooker.tick(LATER) == []
    assert onlooker.take(there(online=False), 50.0) == []
    assert "no coordinator is at work for it" in onlooker.why_silent()
    assert onlooker.take(there("b2"), 100.0) == ["the coordinator is back"]
    assert onlooker.take(STATUS, 101.0) == []
    assert onlooker.picture(101.0).phase == "collecting"


def test_the_first_word_of_a_coordinator_that_is_back_may_be_its_progress(onlooker):
    """Topics have no order among each other; its return is told once."""
    onlooker.take(STATUS, 1.0)
    onlooker.take(there(online=False), 2.0)
    assert onlooker.take(STATUS, 3.0) == ["the coordinator is back"]
    assert onlooker.take(there("b2"), 4.0) == []


def test_a_document_differs_where_more_than_the_time_has_changed(onlooker):
    """A program that reads them is told no news where there is none."""
    onlooker.take(STATUS, 1.0)
    first = onlooker.document()
    onlooker.take(told(status_of(replace(SEEN, elapsed_s=99.0, eta_s=1.0))), 2.0)
    second = onlooker.document()
    assert first != second and timeless(first) == timeless(second)
    onlooker.take(there(online=False), 3.0)
    assert timeless(onlooker.document()) != timeless(second)


def test_the_will_of_a_connection_that_was_replaced_is_passed_over(onlooker):
    """Its boot is an older one."""
    onlooker.take(there("b2"), 0.0)
    onlooker.take(STATUS, 1.0)
    assert onlooker.take(there("b1", online=False), 2.0) == []
    assert onlooker.picture(2.0).phase == "collecting"


def test_the_end_of_a_run_is_no_absence(onlooker):
    """It is over, and that is said once; silence afterwards is what one expects."""
    onlooker.take(there(), 0.0)
    onlooker.take(STATUS, 1.0)
    assert onlooker.take(OVER, 2.0) == ["run run-1 is over: target reached"]
    assert onlooker.take(OVER, 3.0) == []
    assert onlooker.take(there(online=False), 4.0) == ["waiting for the next run"]
    assert onlooker.picture(4.0).phase == "over (target_ua)"
    assert onlooker.tick(LATER + 4.0) == []
    assert onlooker.take(told(status_of(SEEN), "run-2"), 50.0) == ["run run-2 has begun"]


def test_a_broken_connection_is_told_once_and_its_return(onlooker):
    """Not each attempt; and silence without a connection needs no other explanation."""
    onlooker.take(STATUS, 0.0)
    assert onlooker.take(Disconnected("it broke"), 1.0) == ["broker: it broke; trying again"]
    assert onlooker.take(Disconnected("connection refused"), 2.0) == []
    assert onlooker.tick(LATER) == []
    assert onlooker.take(Connected("5", None, True, False), 50.0) == ["connected to broker.local:1883 again"]
    assert onlooker.tick(50.0 + LATER) != []


@settings(max_examples=25)
@given(st.lists(envelopes().map(encode) | st.binary(max_size=40), max_size=5), st.booleans())
def test_nothing_that_arrives_makes_it_fail(payloads, on_presence):
    """Whoever may write there may write anything."""
    onlooker = StatusFollower("home", "broker.local:1883", 0.0)
    for payload in payloads:
        onlooker.take(Received(PRESENCE if on_presence else PROGRESS, payload, False), 1.0)
        onlooker.picture(2.0)
        onlooker.document()


def test_a_status_counts_only_where_the_coordinator_alone_may_write_it(onlooker):
    """Nor does a claim say that anybody is there."""
    onlooker.take(told(status_of(SEEN), topic=PRESENCE), 1.0)
    onlooker.take(told(Claim("b9"), topic=PRESENCE), 1.0)
    assert onlooker.picture(2.0) is None
