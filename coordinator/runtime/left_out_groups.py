"""The line about masked groups whose sum is impossible."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def show_left_out(devices: Sequence[str], say: Callable[[str], None]) -> None:
    """Name the devices of such groups, if there are any."""
    if devices:
        say(f"the sum of a masked group is impossible, so it is left out: {', '.join(devices)}")
