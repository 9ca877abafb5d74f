"""When a device that declined is asked again: after a pause, in the next round, or not before the device itself changes."""

from __future__ import annotations

import math
from dataclasses import replace

from fedpatch.shared.wire.messages import Decline, DeviceState
from fedpatch.shared.wire.reason_codes import DeclineReason

_MAY_PASS = (DeclineReason.UNWILLING, DeclineReason.STORAGE, DeclineReason.BASE_SPENT)


def lasts(decline: Decline) -> bool:
    """Return whether the reason stays until the device itself changes, so that no new invitation can help."""
    return decline.reason not in _MAY_PASS


def pause_s(decline: Decline) -> float:
    """Return the seconds before a new invitation: 0 until the next round; infinite for a reason that lasts."""
    return math.inf if lasts(decline) else decline.retry_after_s


def is_still_barred(before: DeviceState, state: DeviceState) -> bool:
    """Return whether a lasting reason still holds: until the device restarts or offers other tasks.

    Args:
        before: The last presence of the device.
        state: Its new presence.
    """
    return (before.boot, before.tasks) == (state.boot, state.tasks)


def still_pauses(before: DeviceState, state: DeviceState) -> bool:
    """Return whether the pause of a device goes on: the same presence again, after a broken connection, does not end it.

    Args:
        before: The last presence of the device.
        state: Its new presence.
    """
    return replace(before, online=True) == state
