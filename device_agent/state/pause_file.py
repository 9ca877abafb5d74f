"""The owner's pause: a file in the state directory. While it is there, the device takes no work and stops its work."""

from __future__ import annotations

from pathlib import Path

from fedpatch.device_agent.sensors.host import PAUSE_FILE, PAUSE_UNTIL, read_pause
from fedpatch.shared.app.files import refusals_of, write_atomic

_MODE = 0o644


def is_paused(state_dir: Path, *, if_unknown: bool = True) -> bool:
    """Return whether the owner has paused the device, `if_unknown` where that cannot be read."""
    try:
        return read_pause(state_dir / PAUSE_FILE).value is not False
    except OSError:
        return if_unknown


def write_pause(state_dir: Path, until_s: float | None = None) -> None:
    """Write the owner's pause file.

    Args:
        until_s: End of the pause in Unix seconds; None for a pause until `resume`.

    Raises:
        StateError: The disk refused.
    """
    path = state_dir / PAUSE_FILE
    text = "" if until_s is None else f"{PAUSE_UNTIL} {until_s:.0f}\n"
    with refusals_of(path):
        write_atomic(path, text.encode(), mode=_MODE)


def end_pause(state_dir: Path) -> bool:
    """Delete the owner's pause file, and return whether the device was paused. Raises StateError where the disk refused."""
    path = state_dir / PAUSE_FILE
    with refusals_of(path):
        was_paused = is_paused(state_dir)
        path.unlink(missing_ok=True)
    return was_paused
