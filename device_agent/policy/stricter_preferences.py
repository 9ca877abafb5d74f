"""Slightly stricter preferences, under which a device that has become unwilling is willing again."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.policy.preferences import Preferences

BATTERY_MARGIN_PERCENT = 5.0
TEMPERATURE_MARGIN_C = 5.0
SPACE_MARGIN = 1.1
LOAD_MARGIN = 0.9


def stricter(preferences: Preferences) -> Preferences:
    """Return slightly stricter preferences to become willing again: a value that fluctuates at a limit changes nothing.

    No limit becomes impossible to meet.
    """
    was = preferences.settings
    battery_margin = min(BATTERY_MARGIN_PERCENT, (100 - was.min_battery) / 2) if was.min_battery else 0
    settings = replace(
        was,
        min_battery=int(was.min_battery + battery_margin),
        max_temperature=None if was.max_temperature is None else was.max_temperature - TEMPERATURE_MARGIN_C,
        max_load=None if was.max_load is None else was.max_load * LOAD_MARGIN,
        min_free_memory_mib=int(was.min_free_memory_mib * SPACE_MARGIN),
        min_free_disk_mib=int(was.min_free_disk_mib * SPACE_MARGIN),
    )
    return replace(preferences, settings=settings)
