"""Quarantine: devices with too many offences get no invitation until the operator releases them.

The operator's commands run in another process and write to the registry, which `Quarantine.poll` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedpatch.coordinator.rounds.held_devices import QUARANTINED
from fedpatch.coordinator.storage.run_registry import Registry


class Quarantine:
    """The devices of a fleet that are held back.

    Args:
        registry: The coordinator's registry, which keeps offences and held devices.
        fleet: Name of the fleet.
        limit: Offences that put a device into quarantine; 0 for quarantine by the operator only.
        say: Takes a message for the operator.
        most: Greatest number of devices that are quarantined for offences, since a device can use invented names.
        always: Devices that are held back in any case, each with the kind of the hold.
    """

    def __init__(
        self,
        registry: Registry,
        fleet: str,
        limit: int,
        say: Callable[[str], None],
        most: int = 100_000,
        *,
        always: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._holds = registry.holds
        self._fleet = fleet
        self._limit = limit
        self._most = most
        self._say = say
        self._always = always
        self._version = self._holds.version()
        self._held = self._holds.held(fleet)
        # Offences of each device since its last release.
        self._offences = self._holds.offences(fleet)
        # By device, the number of offences that the registry does not have yet, and the last of them.
        self._unwritten: dict[str, tuple[int, str]] = {}
        # Devices that are due for quarantine, with their last offence. A coordinator that was killed after it wrote an offence
        # may have left such devices in the registry.
        last = self._holds.last_offences(fleet)
        self._due = {device: last[device] for device in last.keys() - self._held.keys() if self._is_due(device)}
        self._gone: set[str] = set()

    @property
    def held(self) -> dict[str, str]:
        """The devices that are held back now, each with the kind of the hold."""
        return {**self._always, **self._held}

    def note(self, device: str, reason: str, times: int = 1) -> None:
        """Note offences; the next `poll` or `save` writes them to the registry.

        Args:
            device: The device; "" for an unknown one, which is not noted.
            reason: The offence (coordinator.cohort.offences).
        """
        if device:
            self._offences[device] = self._offences.get(device, 0) + times
            before = self._unwritten.get(device, (0, ""))[0]
            self._unwritten[device] = (before + times, reason)

    def save(self) -> None:
        """Write the noted offences to the registry."""
        offences, self._unwritten = self._unwritten, {}
        if offences:
            self._holds.offend(self._fleet, offences)
        self._due |= {device: last for device, (_, last) in offences.items() if self._is_due(device)}

    def _is_due(self, device: str) -> bool:
        return 0 < self._limit <= self._offences.get(device, 0)

    def forget(self, device: str) -> None:
        """Forget, at the next `poll`, the offences of a device that the run no longer knows, unless it is held back then."""
        self._gone.add(device)

    def poll(self) -> dict[str, str] | None:
        """Return the held devices if they have changed since the last call, else None."""
        changed = self._punish()
        version = self._holds.version()
        if version == self._version and not changed:
            return None
        self._version = version
        return self._read()

    def _punish(self) -> bool:
        self.save()
        due, self._due = self._due, {}
        put = set()
        for device in sorted(due)[: max(0, self._most - len(self._held))]:
            reason = f"{self._offences.get(device, 0)} offences, the last one: {due[device]}"
            if self._holds.put(self._fleet, device, QUARANTINED, reason, time.time()):
                put.add(device)
                self._say(f"{device} quarantined: {reason}; `fedpatch devices release {device}` takes it back")
        if put:
            self._holds.keep()
        self._forget(self._gone - put)
        self._gone = set()
        return bool(due)

    def _forget(self, gone: set[str]) -> None:
        forgotten = gone - self._held.keys()
        for device in forgotten:
            self._offences.pop(device, None)
        if forgotten:
            self._holds.forgive(self._fleet, forgotten)

    def _read(self) -> dict[str, str] | None:
        # A released device has no offences any more, even if it was not held back.
        self._offences = self._holds.offences(self._fleet)
        held = self._holds.held(self._fleet)
        if held == self._held:
            return None
        self._held = held
        return self.held
