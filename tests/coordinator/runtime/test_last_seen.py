"""The time at which a device was last seen: by its presence, and by its answers in a round."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.run_effects import CountEvent
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.wire.features import SUMS_FEATURE
from tests.support.specs import gone, run_spec, there


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def bench() -> tuple[DeviceCounters, Clock, dict[str, float]]:
    seen: dict[str, float] = {}

    def seen_devices(_fleet: str, sightings: Any, _most: int = 0) -> None:
        seen.update({one.device: one.now for one in sightings if one.online})

    rounds = SimpleNamespace(accept=lambda *_: None, depart=lambda *_: None)
    registry: Any = SimpleNamespace(seen_devices=seen_devices, count=lambda *_: None, rounds=rounds)
    clock = Clock()
    return DeviceCounters(registry, "lab", run_spec(), None, lambda _: None, clock), clock, seen


@pytest.mark.parametrize(
    ("what", "at"), [("accepted", 123.0), ("reported", 123.0), ("declined", 123.0), ("lost", 100.0)]
)
def test_device_was_last_seen_at_its_last_message_of_a_round(bench, what, at):
    counters, clock, seen = bench
    counters.note_presence("pi-1", there())
    counters.flush()
    clock.now = 123.0
    counters.count(CountEvent("pi-1", what, "unwilling" if what == "declined" else ""))
    counters.flush()
    assert seen == {"pi-1": at}


def test_presence_of_a_relay_is_noted_as_that_of_a_relay_also_after_its_last_will(tmp_path):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        counters = DeviceCounters(registry, "lab", run_spec(), None, lambda _: None, Clock())
        counters.note_presence("pi-1", there())
        counters.note_presence("site-7", replace(there(), features=(SUMS_FEATURE,)))
        counters.flush()
        counters.note_presence("site-7", gone())
        counters.flush()
        assert {one.id: (one.online, one.relay) for one in registry.devices()} == {
            "pi-1": (True, False),
            "site-7": (False, True),
        }


def test_message_of_a_device_that_has_left_does_not_bring_it_back(bench):
    counters, clock, seen = bench
    counters.note_presence("pi-1", there())
    counters.note_presence("pi-1", gone())
    counters.flush()
    clock.now = 123.0
    counters.count(CountEvent("pi-1", "reported"))
    counters.flush()
    assert seen == {"pi-1": 100.0}


def test_device_was_last_seen_at_its_last_vitals_to_the_minute(bench):
    """Each note is a write of the registry, so not every message of a busy device is noted."""
    counters, clock, seen = bench
    counters.note_presence("pi-1", there())
    counters.flush()
    for clock.now, at in (
        (159.0, 100.0),
        (161.0, 161.0),
        (200.0, 161.0),
        (90.0, 90.0),
    ):  # at last the clock is set back
        counters.heard("pi-1")
        counters.flush()
        assert seen == {"pi-1": at}


def test_message_of_an_unknown_device_or_of_one_that_has_left_notes_nothing(bench):
    counters, clock, seen = bench
    counters.note_presence("pi-1", gone())
    clock.now = 500.0
    for device in ("pi-1", "pi-2"):
        counters.heard(device)
    counters.flush()
    assert seen == {}
