"""Two coordinators of one fleet: the second checks for another one first, and is refused while the first is running."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime import fleet_claim
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.event_queue import Deposed
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import LeadershipLost, UsageError
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Body, Claim, CoordinatorState, Envelope
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.support.brokers import PATIENCE_S, Mosquitto, client

pytestmark = pytest.mark.broker

PRESENCE = topics.coordinator_state("home")
REFUSED = "another coordinator is at work for fleet 'home'.*; wait for it, end it first, or use another --fleet"


def connection_to(url: str, *, fleet: str = "home", user: str | None = None) -> Connection:
    """Return the connection of a coordinator, not entered yet."""
    return Connection(RunSettings(broker=url, fleet=fleet, state_dir=Path("nowhere"), username=user, password=user))


@contextlib.contextmanager
def at_work(url: str, *, fleet: str = "home", user: str | None = None) -> Iterator[Connection]:
    with connection_to(url, fleet=fleet, user=user) as one:
        one.announce(online=True)
        assert eventually(lambda: one.link.idle)  # the broker has the presence
        yield one


def refused_at(url: str, **values: str) -> bool:
    """Return whether another coordinator is refused."""
    try:
        with connection_to(url, **values):
            return False
    except UsageError:
        return True


def events_of(connection: Connection) -> list[object]:
    """Return the events in the queue, except Connected."""
    found: list[object] = []
    with contextlib.suppress(queue.Empty):
        while True:
            event = connection.event_queue.get()
            if not isinstance(event, Connected):
                found.append(event)
    return found


def eventually(fits: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not fits() and time.monotonic() < until:
        time.sleep(0.02)
    return fits()


def retained_presence(url: str, state: CoordinatorState) -> None:
    """Retain the presence of an earlier coordinator on the broker."""
    with client(url, "medium", "barrier/medium") as medium:
        medium.link.publish(PRESENCE, encode(Envelope(state)), retain=True)
        medium.settle()


@pytest.fixture
def waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a missing answer exceeds the time limit of the test; waiting for a slow broker does not."""
    monkeypatch.setattr(fleet_claim, "ANSWER_S", 3600.0)
    monkeypatch.setattr(fleet_claim, "_ECHO_S", PATIENCE_S)


def test_second_coordinator_is_refused_and_the_first_undisturbed(broker: str, waits_for_ever: None):
    with at_work(broker) as first:
        for _ in range(2):
            with pytest.raises(UsageError, match=REFUSED), connection_to(broker):
                pass
        assert events_of(first) == []
        with client(broker, "witness", PRESENCE) as witness:
            assert witness.received(PRESENCE).payload == first._state(online=True)


@pytest.mark.parametrize("killed", [False, True])
def test_coordinator_that_left_or_was_killed_is_not_waited_for(
    mosquitto: Mosquitto, waits_for_ever: None, killed: bool
):
    if killed:
        retained_presence(mosquitto.url, CoordinatorState(False, "dead"))  # its last will
    for _ in range(3):
        with at_work(mosquitto.url):
            pass


def test_coordinators_of_two_fleets_do_not_collide(mosquitto: Mosquitto, waits_for_ever: None):
    with at_work(mosquitto.url) as first, at_work(mosquitto.url, fleet="away") as second:
        assert events_of(first) == events_of(second) == []


def test_one_that_died_with_its_broker_costs_a_single_wait(mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch):
    """The broker was killed before it could publish the last will, and still retains the coordinator's online presence."""
    retained_presence(mosquitto.url, CoordinatorState(True, "dead"))
    monkeypatch.setattr(fleet_claim, "ANSWER_S", 0.2)
    with at_work(mosquitto.url):
        pass
    monkeypatch.setattr(fleet_claim, "ANSWER_S", 3600.0)
    with at_work(mosquitto.url):
        pass


@pytest.mark.parametrize("there", [True, False])
def test_broker_without_retained_messages_the_answer_decides(there: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fleet_claim, "ANSWER_S", 3600.0 if there else 0.2)
    answers: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
    bodies: list[Body] = [Claim("mine"), Claim("another's"), *([CoordinatorState(True, "first")] if there else [])]
    for body in bodies:
        answers.put(Received(PRESENCE, encode(Envelope(body)), retained=False))
    assert fleet_claim._answered(answers, "mine", time.monotonic, retains=False) == there


def test_goodbye_overtakes_the_retained_presence(waits_for_ever: None):
    answers: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
    for body, retained in (
        (CoordinatorState(True, "first"), True),
        (Claim("mine"), False),
        (CoordinatorState(False, "first"), False),
    ):
        answers.put(Received(PRESENCE, encode(Envelope(body)), retained))
    assert not fleet_claim._answered(answers, "mine", time.monotonic, retains=True)


@pytest.mark.parametrize("form", ["listed", "pattern"])
def test_generated_acl_lets_coordinators_see_each_other(form: str, waits_for_ever: None):
    acl = mosquitto_acl("home", devices=["pi-1"] if form == "listed" else None)
    with Mosquitto(acl=acl, passwords={"coordinator": "coordinator"}) as mosquitto:
        with at_work(mosquitto.url, user="coordinator"):
            assert refused_at(mosquitto.url, user="coordinator")
        assert not refused_at(mosquitto.url, user="coordinator")


def test_older_acl_is_reported_and_the_run_begins(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(fleet_claim, "_ECHO_S", 0.2)
    acl = mosquitto_acl("home", devices=["pi-1"]).replace("readwrite", "write")
    with Mosquitto(acl=acl, passwords={"coordinator": "coordinator"}) as mosquitto:
        assert not refused_at(mosquitto.url, user="coordinator")
    assert "write it anew with `fedpatch broker acl`" in caplog.messages[0]


def test_replaced_coordinator_reports_the_other(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("fedpatch.coordinator.runtime.connection.acquire_fleet", lambda *_, **__: None)
    with at_work(mosquitto.url) as first, at_work(mosquitto.url):
        warning = "another coordinator of fleet 'home' was at work during the disconnection; end one of the two"
        assert eventually(lambda: warning in caplog.messages)
    first._take(
        Disconnected("broker.lan closed the connection: another client has our name; give every device its own")
    )
    assert events_of(first)[-1] == Disconnected(
        "another coordinator of fleet 'home' replaced this connection; end one of the two"
    )


@pytest.mark.medium
def test_coordinator_that_was_replaced_during_a_pause_ends_and_leaves_the_other_connected(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
):
    with at_work(mosquitto.url) as paused, contextlib.ExitStack() as stack:
        with monkeypatch.context() as no_answer:  # the paused one does not answer the claim
            no_answer.setattr("fedpatch.coordinator.runtime.connection.acquire_fleet", lambda *_, **__: None)
            successor = stack.enter_context(at_work(mosquitto.url))
        assert eventually(paused.event_queue.ending.is_set)
        assert any(isinstance(one, Deposed) for one in events_of(paused))
        with pytest.raises(LeadershipLost, match="another coordinator has taken over fleet 'home'"):
            paused.must_lead()
        with client(mosquitto.url, "witness", PRESENCE) as witness:
            assert witness.received(PRESENCE).payload == successor._state(online=True)
        assert (paused._connects, successor._connects, events_of(successor)) == (1, 1, [])


@pytest.mark.medium
def test_restarted_broker_is_not_taken_for_another_coordinator(mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture):
    with at_work(mosquitto.url) as first:
        mosquitto.stop()
        mosquitto.start()
        assert eventually(lambda: first._connects == 2)
        first.announce(online=True)
        assert eventually(lambda: first.link.idle)  # the broker has the presence
        assert refused_at(mosquitto.url)
    assert [line for line in caplog.messages if "another coordinator" in line] == []


def test_claim_of_another_is_answered_and_everything_else_ignored(mosquitto: Mosquitto):
    with at_work(mosquitto.url) as first, client(mosquitto.url, "witness", PRESENCE, "barrier/witness") as witness:
        witness.received(PRESENCE)
        for payload in (encode(Envelope(Claim(first._boot))), b"", b"\xff", encode(Envelope(Claim("other")))):
            witness.link.publish(PRESENCE, payload)
        state = witness.wait(Received, lambda event: event.payload == first._state(online=True))
        assert not state.retained
        witness.settle()
        lines = [one for one in witness.seen if isinstance(one, Received) and one.payload == first._state(online=True)]
        assert len(lines) == 2
        assert events_of(first) == []
