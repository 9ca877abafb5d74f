"""Settings that do not fit evaluate rounds, in which each device reports a figure of its own."""

from __future__ import annotations

from typing import Final

from fedpatch.coordinator.setting_conflicts.conflict import Conflict

_A_FIGURE = "{s.evaluate_every} has each device report a figure of its own, "

EVALUATE_ROUNDS: Final = (
    Conflict(
        "evaluate_every",
        ("secure",),
        lambda s: s.masked,
        f"{_A_FIGURE}which secure = groups is to hide in sums; use 0",
    ),
    Conflict(
        "evaluate_every",
        ("dp",),
        lambda s: s.dp != "off",
        f"{_A_FIGURE}which differential privacy does not cover; use 0",
    ),
    Conflict(
        "evaluate_every",
        ("late",),
        lambda s: s.late == "carry",
        "{s.evaluate_every} would end work that devices carry into later rounds; use 0",
    ),
)
