"""Slightly stricter preferences, under which a device that has become unwilling is willing again."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.policy.preference_rules import FACT_PREFERENCES
from fedpatch.device_agent.policy.preferences import Preferences


def stricter(preferences: Preferences) -> Preferences:
    """Return preferences with the stricter limits of their records: a value that fluctuates at a limit changes nothing."""
    was = preferences.settings
    limits = {name: (getattr(was, name), one) for name, one in FACT_PREFERENCES.items()}
    changed = {name: one.stricter(limit) for name, (limit, one) in limits.items() if limit != one.off}
    return replace(preferences, settings=replace(was, **changed))
