"""The states of a device as numbers with colours, because Grafana colours numbers and not labels."""

from __future__ import annotations

from dashboards.looks import BAD, IDLE, OK, WARNING

# (number, label, colour, states of fedpatch_device_state)
_GROUPS = (
    (1, "offline", IDLE, ("offline",)),
    (2, "vanished in the round", "purple", ("lost",)),
    (3, "failed or late", BAD, ("failed", "late")),
    (4, "barred, held back or other task", "dark-red", ("barred", "quarantined", "drained", "other_task")),
    (5, "unwilling, declined or starting", WARNING, ("unwilling", "declined", "starting")),
    (6, "eligible", OK, ("eligible",)),
    (7, "invited or accepted", "light-blue", ("invited", "accepted")),
    (8, "training", "blue", ("training",)),
    (9, "uploading", "dark-blue", ("uploading",)),
    (10, "reported", "dark-green", ("reported",)),
)
STATES = tuple(state for *_, states in _GROUPS for state in states)
WORDS = tuple((number, words, colour) for number, words, colour, _ in _GROUPS)


def state_number(selector: str) -> str:
    """Return PromQL with one series per device, the number of its state; `selector` has labels, such as `device="ann"`."""
    return " or ".join(
        f'max by (device) ({number} * fedpatch_device_state{{{selector}, state=~"{"|".join(states)}"}})'
        for number, _, _, states in _GROUPS
    )
