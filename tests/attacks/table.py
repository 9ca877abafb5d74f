"""All attacks: the table that docs/explanation/threat-model.md shows."""

from __future__ import annotations

from tests.attacks.attack import Attack
from tests.attacks.by_floods import FLOODS
from tests.attacks.by_masking import MASKED_ATTACKS
from tests.attacks.by_messages import MESSAGE_ATTACKS
from tests.attacks.by_poison import POISONS
from tests.attacks.by_sockets import SOCKET_ATTACKS
from tests.attacks.by_stalling import STALLING_ATTACKS
from tests.attacks.by_steps import STEP_ATTACKS
from tests.attacks.by_theft import THEFTS
from tests.attacks.by_updates import UPDATE_ATTACKS

ATTACKS: tuple[Attack, ...] = (
    *UPDATE_ATTACKS,
    *STEP_ATTACKS,
    *STALLING_ATTACKS,
    *FLOODS,
    *MESSAGE_ATTACKS,
    *SOCKET_ATTACKS,
)


NAMED = ("refused", "the broker ends the connection", "the broker's access rules")
"""Protections against attacks whose names say what they do."""


def rows() -> list[tuple[str, str, str]]:
    """Name, what it does, what stops it."""
    thefts = [(one.name, one.does, "the broker's access rules") for one in THEFTS]
    poisons = [(f"poison: {one.name}", one.does, "limited by `norm_bound`, and named") for one in POISONS]
    masked = [(f"masked group: {one.name}", one.does, one.stopped_by) for one in MASKED_ATTACKS]
    return [*((one.name, one.does, one.stopped_by) for one in ATTACKS), *poisons, *thefts, *masked]


def markdown() -> str:
    """The table as the page has it: a row for each protection, with its attacks, by the prefix of their names."""
    stopped: dict[str, dict[str, list[str]]] = {}
    for name, does, stopped_by in rows():
        kind, _, rest = name.rpartition(": ")
        about = "" if stopped_by.startswith(NAMED) else f" ({does})"
        stopped.setdefault(stopped_by, {}).setdefault(kind, []).append(rest + about)
    lines = ["| protection | attacks |", "|---|---|"]
    for protection, kinds in stopped.items():
        listed = (f"{kind}: {', '.join(names)}" if kind else "; ".join(names) for kind, names in kinds.items())
        lines.append(f"| {protection} | {'; '.join(listed)} |")
    return "\n".join(lines) + "\n"
