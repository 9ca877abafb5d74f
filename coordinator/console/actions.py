"""The operator's actions on a state directory: hold a device back, release it, stop a run after its open round.

A running coordinator reads the same directory and applies a change within two seconds.
"""

from __future__ import annotations

from pathlib import Path

from fedpatch.coordinator.guard.device_holds import hold, lift
from fedpatch.coordinator.guard.stop_request import request_stop
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.shared.errors import unknown_name

_HOLDS = {"quarantine": QUARANTINED, "drain": DRAINED}
_LIFTS = {"release": QUARANTINED, "resume": DRAINED}
DEVICE_ACTIONS = (*_HOLDS, *_LIFTS)


def act_on_device(state_dir: Path, fleet: str, device: str, action: str, reason: str) -> str:
    """Hold a device back or release it, as `fedpatch devices` does.

    Args:
        action: One of DEVICE_ACTIONS.
        reason: The reason of a hold, shown with the device.

    Returns:
        The result in words.

    Raises:
        UsageError: Unknown action or device, or a reason that cannot be shown.
        StateError: The registry cannot be written.
    """
    if action in _HOLDS:
        kind = _HOLDS[action]
        changed = hold(state_dir, device, kind, reason, fleet).changed
        return f"{device} is {kind}" if changed else f"{device} is {kind} already; its reason stays"
    if action in _LIFTS:
        kind = _LIFTS[action]
        changed = lift(state_dir, device, kind, fleet).changed
        return f"{device} is no longer {kind}" if changed else f"{device} was not {kind}"
    raise unknown_name("action", action, DEVICE_ACTIONS)


def stop_run(state_dir: Path, run: str) -> str:
    """Ask the coordinator of a run to stop after its open round, as `fedpatch stop` does; return the result in words.

    Raises:
        UsageError: There is no such run, or no coordinator works on it in this directory.
    """
    return request_stop(state_dir, run)
