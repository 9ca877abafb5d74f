"""The margins by which a value must be better than its limit before a device that has become unwilling works again."""

from __future__ import annotations

BATTERY_MARGIN_PERCENT = 5.0
TEMPERATURE_MARGIN_C = 5.0
SPACE_MARGIN = 1.1
LOAD_MARGIN = 0.9


def more_battery(limit: int) -> int:
    """Return the charge at which a device is willing again, in percent; never above the middle between limit and full."""
    return int(limit + min(BATTERY_MARGIN_PERCENT, (100 - limit) / 2))


def more_space(limit: int) -> int:
    """Return the free memory or disk at which a device is willing again, in MiB."""
    return int(limit * SPACE_MARGIN)
