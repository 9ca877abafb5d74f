"""Counters of devices and their presence, written to the registry when there is time: each write waits for the disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from fedpatch.coordinator.cohort.exclusion import excludes
from fedpatch.coordinator.cohort.offences import OFFENCES
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.rounds.run_effects import CountEvent, ExcludeDevice
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.storage.run_registry import Registry, Sighting
from fedpatch.shared.wire.features import SUMS_FEATURE
from fedpatch.shared.wire.messages import DeviceState

_SHOWN = ("declined", "failed", "refused")
_HEARD = ("accepted", "declined", "reported")
"""Events that a message of the device has caused: it was seen at that moment."""

_HEARD_EVERY_S = 60.0


class DeviceCounters:
    """Counts events of devices, and notes their presence, until the next `flush`.

    Args:
        registry: Receives the counts.
        fleet: Name of the fleet.
        spec: The terms of the run.
        quarantine: Receives each offence; None: no quarantine.
        say: Shows a line to the operator.
        unix_time: Returns seconds of the wall clock.

    Attributes:
        accepted: Devices that accepted since the journal of the open round was written. They are also written with updates.
        departed: Devices that left the count of the open round, each with state and reason, until they are written.
    """

    def __init__(
        self,
        registry: Registry,
        fleet: str,
        spec: RunSpec,
        quarantine: Quarantine | None,
        say: Callable[[str], None],
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self.accepted: set[str] = set()
        self.departed: dict[str, tuple[str, str]] = {}
        self._registry = registry
        self._fleet = fleet
        self._spec = spec
        self._quarantine = quarantine
        self._say = say
        self._unix_time = unix_time
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._sightings: dict[str, Sighting] = {}
        self._known: dict[str, Sighting] = {}

    def count(self, event: CountEvent) -> None:
        """Add `event` to a device's counters; show declines, failures and refusals to the operator."""
        self._counts[event.device, event.what, event.reason] += event.times
        excluded = event.what == "refused" and excludes(event.reason)
        if (event.what, event.reason) in OFFENCES and not excluded and self._quarantine is not None:
            self._quarantine.note(event.device, event.reason, event.times)
        if event.what == "accepted":
            self.accepted.add(event.device)
        if event.what in _HEARD and (known := self._known.get(event.device)) is not None and known.online:
            self._sightings[event.device] = replace(known, now=self._unix_time())
        if event.leaves:
            self.departed[event.device] = (event.what, event.reason)
        if event.what in _SHOWN:
            end = "; it is not asked again in this run" if excluded else ""
            self._say(f"{event.device} {event.what}: {event.reason} {event.detail}".rstrip() + end)

    def exclude(self, effect: ExcludeDevice) -> None:
        """Write the offence of a device, and that the run does not ask it again."""
        if self._quarantine is not None:
            self._quarantine.note(effect.device, effect.reason)
            self._quarantine.save()
        self._registry.rounds.exclude_offender(self._spec.run, effect.device, effect.reason)

    def heard(self, device: str) -> None:
        """Note a message of an online device, such as its vitals, at most once in _HEARD_EVERY_S: each note is a write."""
        known, now = self._known.get(device), self._unix_time()
        if known is not None and known.online and not 0 <= now - known.now < _HEARD_EVERY_S:
            self._sightings[device] = self._known[device] = replace(known, now=now)

    def note_presence(self, device: str, state: DeviceState) -> None:
        """Note the presence of `device`; `flush` writes many devices with one wait for the disk."""
        tasks = tuple(one.task for one in state.tasks)
        before = self._sightings.pop(device, None)
        if before is not None and not state.online:
            # A last will has no tasks, so the state that the device published before it is written first.
            self._registry.seen_devices(self._fleet, [before])
        sighting = Sighting(
            device, self._unix_time(), state.online, state.version, tasks, SUMS_FEATURE in state.features
        )
        self._sightings[device] = self._known[device] = sighting
        if len(self._known) > self._spec.limits.max_devices:  # names can be invented
            del self._known[next(iter(self._known))]

    def save_departed(self) -> None:
        """Write the devices that left the count of the open round."""
        if self.departed:
            self._registry.rounds.depart(self._spec.run, self.departed)
            self.departed.clear()

    def flush(self) -> None:
        """Write the counters, the presence of devices, and the devices that accepted or left the count of the open round."""
        self.save_departed()
        if self._sightings:
            self._registry.seen_devices(self._fleet, self._sightings.values(), self._spec.limits.max_devices)
            self._sightings.clear()
        if self._counts:
            self._registry.count(self._fleet, *((*counted, times) for counted, times in self._counts.items()))
            self._counts.clear()
        if self.accepted:
            self._registry.rounds.accept(self._spec.run, self.accepted)
            self.accepted.clear()
