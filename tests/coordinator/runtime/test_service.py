"""The service: messages before they reach the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

from fedpatch.coordinator.cohort.offences import NOT_OFFENCES
from fedpatch.coordinator.guard.ingress_filter import IngressFilter
from fedpatch.coordinator.observability.event_observer import NullObserver
from fedpatch.coordinator.rounds.run_effects import CountEvent
from fedpatch.coordinator.runtime.broker_drops import BrokerDrops
from fedpatch.coordinator.runtime.broker_refusals import BrokerRefusals
from fedpatch.coordinator.runtime.event_queue import AdmittedMessage, Event, EventQueue, UpdateWritten
from fedpatch.coordinator.runtime.service import Service
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import Chunk, encode_chunk
from tests.coordinator.engines import asking
from tests.coordinator.fake_link import RecordedLink


def listening_service() -> Service:
    """A service that knows device a."""
    connection: Any = SimpleNamespace(
        ingress_filter=IngressFilter(10),
        fleet="demo",
        link=RecordedLink(),
        event_queue=EventQueue(),
        drops=BrokerDrops(),
        refusals=BrokerRefusals(),
    )
    performer: Any = SimpleNamespace(observer=NullObserver(), updates=SimpleNamespace(holds=lambda _device: False))
    nobody: Any = SimpleNamespace(revoked=frozenset())
    return Service(asking("a"), performer, connection=connection, publisher=nobody, view=nobody, revocations=nobody)


def admitted(topic: str, payload: bytes) -> AdmittedMessage:
    """Return the event of a message on a topic of fleet demo."""
    parsed = topics.parse_topic("demo", topic)
    assert parsed is not None
    return AdmittedMessage(parsed, topic, payload)


def test_each_event_of_the_queue_has_a_handler():
    assert listening_service().handlers.keys() == set(get_args(Event))


def test_garbage_of_unknown_devices_is_counted_under_no_name():
    """Otherwise invented names would grow the counters without limit."""
    service = listening_service()
    for device, name in (("a", "a"), ("ghost", "")):
        garbage = admitted(topics.up("demo", device), b"\xc1")
        assert service._on_message(garbage, 1.0) == [CountEvent(name, "ignored", "not_ours")]


def test_chunk_that_its_link_has_damaged_is_no_offence():
    payload = bytearray(encode_chunk(Chunk("ab" * 32, 0, 1, b"data")))
    payload[-1] ^= 1
    received = admitted(topics.update_chunk("demo", "a", "ab" * 32, 0), bytes(payload))
    (counted,) = listening_service()._on_message(received, 1.0)
    assert counted == CountEvent("a", "ignored", "damaged_chunk")
    assert ("ignored", "damaged_chunk") in NOT_OFFENCES


def test_changes_by_other_processes_are_read_once_a_second():
    clock = SimpleNamespace(now=100.0)
    event_queue = EventQueue(lambda: clock.now)
    connection: Any = SimpleNamespace(
        ingress_filter=IngressFilter(10),
        fleet="demo",
        link=RecordedLink(),
        event_queue=event_queue,
        drops=BrokerDrops(),
        refusals=BrokerRefusals(),
    )
    updates = SimpleNamespace(completed=lambda _most: [])
    performer: Any = SimpleNamespace(observer=NullObserver(), updates=updates, run_effect=lambda _: ())
    read_at: list[float] = []

    def poll(_members: object) -> frozenset[str]:
        read_at.append(clock.now)
        return frozenset()

    revocations: Any = SimpleNamespace(poll=poll)
    view: Any = SimpleNamespace(show=lambda _: None)
    service = Service(asking("a"), performer, connection=connection, publisher=view, view=view, revocations=revocations)
    for clock.now in (100.0, 100.5, 100.9, 101.0, 101.1, 103.0):
        event_queue.put(UpdateWritten())
        service.step()
    assert read_at == [100.0, 101.0, 103.0]
