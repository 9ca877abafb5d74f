"""Settings that part the control variate of the server from those of the devices (SCAFFOLD)."""

from __future__ import annotations

from typing import Any, Final

from fedpatch.coordinator.setting_conflicts.conflict import Conflict
from fedpatch.shared.wire.plan_terms import CONTROL


def _other_than(name: str, kinds: tuple[str, ...], remedy: str) -> Conflict:
    def parts_controls(settings: Any) -> bool:
        return str(getattr(settings, name)).partition(":")[0] not in kinds and CONTROL in settings.moments

    text = (
        f"{{s.{name}}} does not fit, since the control variates of {{s.strategy}} must be the mean of those that devices "
        f"keep; use {remedy}"
    )
    return Conflict(name, ("strategy",), parts_controls, text)


CONTROL_VARIATES: Final = (
    _other_than("norm_bound", ("auto", "off"), "auto:F or off"),
    _other_than("max_num_examples", ("off",), "off"),
    _other_than("late", ("refuse",), "refuse"),
)
