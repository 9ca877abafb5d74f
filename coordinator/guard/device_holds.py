"""Quarantine and maintenance of devices in a registry. A running coordinator applies a change within seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.storage.database.opening import must_exist
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError, unknown_name

_MAX_REASON = 500


@dataclass(frozen=True)
class HoldChange:
    """The device after a change of its holds; `changed` is False if the device was in that state already."""

    device: DeviceInfo
    changed: bool


def hold(state_dir: Path, device: str, kind: str, reason: str, fleet: str | None = None) -> HoldChange:
    """Hold a device back.

    Args:
        kind: "quarantined" or "drained".
        reason: The reason, 1 to 500 printable characters.
        fleet: Its fleet, where several have a device of this id.

    Returns:
        The device and whether it changed. The reason of an earlier hold stays.

    Raises:
        UsageError: The reason is empty or too long, or there is no such device.
    """
    if not reason.strip() or len(reason) > _MAX_REASON or not reason.isprintable():
        raise UsageError(f"the reason must have 1 to {_MAX_REASON} printable characters")
    return _change(state_dir, device, kind, fleet, reason)


def lift(state_dir: Path, device: str, kind: str, fleet: str | None = None) -> HoldChange:
    """End a hold.

    Args:
        kind: "quarantined" or "drained".
        fleet: Its fleet, where several have a device of this id.

    Returns:
        The device and whether it changed.

    Raises:
        UsageError: There is no such device.
    """
    return _change(state_dir, device, kind, fleet, None)


def _change(state_dir: Path, device: str, kind: str, fleet: str | None, reason: str | None) -> HoldChange:
    path = state_dir / REGISTRY_FILE
    must_exist(path)  # raises before a registry is created
    with Registry(path) as registry:
        found = _find(registry, device, fleet)
        if reason is None:
            changed = registry.holds.lift(found.fleet, found.id, kind)
        else:
            changed = registry.holds.put(found.fleet, found.id, kind, reason, time.time())
        registry.holds.keep()
        return HoldChange(_find(registry, found.id, found.fleet), changed)


def _find(registry: Registry, device: str, fleet: str | None) -> DeviceInfo:
    known = [one for one in registry.devices() if fleet in (None, one.fleet)]
    found = [one for one in known if one.id == device]
    if not found:
        raise unknown_name("device", device, [one.id for one in known[:100]])
    if len(found) > 1:
        fleets = ", ".join(one.fleet for one in found)
        raise UsageError(f"there is a device {device!r} in each of the fleets {fleets}; name one with --fleet")
    return found[0]
