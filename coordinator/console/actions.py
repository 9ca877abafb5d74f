"""The operator's actions on a state directory: hold a device back, release it, stop a run after its open round.

A running coordinator reads the same directory and applies a change within two seconds.
"""

from __future__ import annotations

import time
from pathlib import Path

from fedpatch.coordinator.guard.stop_request import request_stop
from fedpatch.coordinator.rounds.known_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.storage.database import must_exist
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError, unknown_name

MAX_REASON = 500
_HOLDS = {"quarantine": QUARANTINED, "drain": DRAINED}
_LIFTS = {"release": QUARANTINED, "resume": DRAINED}
DEVICE_ACTIONS = (*_HOLDS, *_LIFTS)


def act_on_device(state_dir: Path, fleet: str, device: str, action: str, reason: str) -> str:
    """Hold a device back or release it, as `fedpatch devices` does.

    Args:
        state_dir: The state directory.
        fleet: Name of the device's fleet.
        device: The device.
        action: One of DEVICE_ACTIONS.
        reason: The reason of a hold, shown with the device.

    Returns:
        The result in words.

    Raises:
        UsageError: Unknown action or device, or a reason that cannot be shown.
        StateError: The registry cannot be written.
    """
    if action not in DEVICE_ACTIONS:
        raise unknown_name("action", action, DEVICE_ACTIONS)
    if action in _HOLDS and not (len(reason.strip()) >= 1 and len(reason) <= MAX_REASON and reason.isprintable()):
        raise UsageError(f"the reason must have 1 to {MAX_REASON} printable characters")
    path = state_dir / REGISTRY_FILE
    must_exist(path)  # raises before a registry is created
    with Registry(path) as registry:
        known = [one.id for one in registry.devices() if one.fleet == fleet]
        if device not in known:
            raise unknown_name("device", device, known[:100])
        if action in _HOLDS:
            kind = _HOLDS[action]
            changed = registry.holds.put(fleet, device, kind, reason, time.time())
            words = f"{device} is {kind}" if changed else f"{device} is {kind} already; its reason stays"
        else:
            kind = _LIFTS[action]
            changed = registry.holds.lift(fleet, device, kind)
            words = f"{device} is no longer {kind}" if changed else f"{device} was not {kind}"
        registry.holds.keep()
    return words


def stop_run(state_dir: Path, run: str) -> str:
    """Ask the coordinator of a run to stop after its open round, as `fedpatch stop` does; return the result in words.

    Raises:
        UsageError: There is no such run, or it is not at work.
    """
    return request_stop(state_dir, run)
