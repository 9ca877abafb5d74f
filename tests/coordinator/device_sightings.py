"""A device as the registry has seen it."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.coordinator.storage.run_registry import Registry, Sighting


def seen(
    registry: Registry,
    device: str,
    *,
    fleet: str,
    now: float,
    online: bool,
    version: str = "",
    tasks: Sequence[str] = (),
) -> None:
    """Note the presence of one device."""
    registry.seen_devices(fleet, [Sighting(device, now, online, version, tuple(tasks))])
