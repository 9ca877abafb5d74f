"""The event queue: the time of a message is the time of its arrival, not of its processing."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.guard.ingress_filter import IngressFilter
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.run_events import DevicePresence
from fedpatch.coordinator.runtime.broker_drops import BrokerDrops
from fedpatch.coordinator.runtime.broker_refusals import BrokerRefusals
from fedpatch.coordinator.runtime.event_queue import AdmittedMessage, EventQueue, Interrupt, UpdateWritten
from fedpatch.coordinator.runtime.service import Service
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Accept, Envelope
from tests.coordinator.effect_runners import Bench
from tests.coordinator.fake_link import RecordedLink
from tests.support.specs import there


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets seconds pass on the clock; no other time passes, however busy the machine is."""
    began, passed = time.monotonic(), [0.0]

    def wait(seconds: float) -> None:
        passed[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: began + passed[0])
    return wait


def test_events_come_out_in_order():
    inbox, events = EventQueue(), [Interrupt(), Interrupt()]
    for event in events:
        inbox.put(event)
    assert inbox.waiting() == 2
    assert [inbox.get(), inbox.get()] == events
    with pytest.raises(Empty):
        inbox.get()


def test_now_is_the_time_of_the_event_that_was_taken(later):
    inbox = EventQueue(lambda: time.monotonic())
    began_at = inbox.now
    inbox.put(Interrupt())
    later(5)
    inbox.put(Interrupt())
    later(5)
    inbox.get()
    assert inbox.now < began_at + 1
    assert inbox.processed_until() == inbox.now
    inbox.get()
    assert began_at + 5 <= inbox.now < began_at + 6
    assert began_at + 10 <= inbox.processed_until()


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "catch up", "reach"]), st.floats(0, 1e6))))
def test_now_never_goes_back(steps):
    inbox = EventQueue()
    for what, moment in steps:
        before = inbox.now
        if what == "put":
            inbox.put(Interrupt())
        elif what == "get" and inbox.waiting():
            inbox.get()
        elif what == "catch up":
            inbox.now_is_present()
        elif what == "reach":
            inbox.advance_to(moment)
        assert inbox.now >= before


def _at_work(bench: Bench) -> Service:
    connection: Any = SimpleNamespace(
        event_queue=bench.event_queue,
        ingress_filter=IngressFilter(10),
        fleet="demo",
        link=RecordedLink(),
        drops=BrokerDrops(),
        refusals=BrokerRefusals(),
    )
    none: frozenset[str] = frozenset()
    nobody: Any = SimpleNamespace(revoked=none, poll=lambda _: none, show=lambda _: None, say=lambda _: None)
    return Service(
        bench.engine, bench.performer, connection=connection, publisher=nobody, view=nobody, revocations=nobody
    )


@pytest.mark.parametrize(("came_after_s", "state"), [(4.0, State.ACCEPTED), (6.0, State.LATE)])
def test_answer_counts_by_the_time_of_its_arrival(prepared, tmp_path, registry, later, came_after_s, state):
    bench = Bench(tmp_path, prepared, registry, recruit_deadline_s=5.0)
    service = _at_work(bench)
    for device in "ab":
        bench.perform(bench.engine.handle(DevicePresence(device, there()), time.monotonic()))
    bench.receive("a", Accept(10))
    later(came_after_s)
    bench.event_queue.put(UpdateWritten())  # another event, after which the coordinator checks its deadlines
    answer = Envelope(Accept(10), task="digits", run=bench.engine.spec.run, epoch=bench.engine.spec.epoch, round=1)
    topic = topics.up("demo", "b")
    parsed = topics.parse_topic("demo", topic)
    assert parsed is not None
    bench.event_queue.put(AdmittedMessage(parsed, topic, encode(answer)))
    later(30)
    for _ in range(2):
        service.step()
    assert bench.engine.open is not None
    assert bench.engine.open.round.participants["b"].state is state
