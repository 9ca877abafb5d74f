"""Settings that do not fit `late = carry`, and settings of carried work in a run without it."""

from __future__ import annotations

from typing import Any, Final

from fedpatch.coordinator.setting_conflicts.conflict import Conflict


def _without_carry(name: str) -> Conflict:
    def is_set(settings: Any) -> bool:
        return bool(settings.late != "carry" and getattr(settings, name) != getattr(type(settings), name))

    text = f"{{s.{name}}} has no effect with late = {{s.late}}; set late = carry, or leave it out"
    return Conflict(name, ("late",), is_set, text)


def _too_few_at_work(name: str) -> Conflict:
    def is_above(settings: Any) -> bool:
        least, at_work = getattr(settings, name), settings.concurrency
        return settings.late == "carry" and bool(least and at_work) and at_work < least

    text = f"{{s.concurrency}} is less than {name} = {{s.{name}}}, so no round would end; raise it"
    return Conflict("concurrency", (name,), is_above, text)


NO_CARRIED_WORK: Final = tuple(map(_without_carry, ("max_staleness", "staleness_power", "concurrency")))
"""Settings that have no effect in a run without carried work."""

CARRIED_WORK: Final = (
    Conflict(
        "late",
        ("secure",),
        lambda s: s.late == "carry" and s.masked,
        "carry takes updates one by one, and a masked group opens as a whole or never; leave one of the two out",
    ),
    Conflict(
        "late",
        ("dp",),
        lambda s: s.late == "carry" and s.dp != "off",
        "carry lets one device enter a version with updates of several models, which the account of dp does not cover; "
        "leave one of the two out",
    ),
    Conflict(
        "aggregate",
        ("late",),
        lambda s: s.late == "carry" and s.aggregate != "mean",
        "{s.aggregate} compares updates that began with the same model, and would hold back those of slow devices; "
        "use mean, or late = refuse",
    ),
    *map(_too_few_at_work, ("quorum_updates", "min_cohort")),
)
"""Settings that do not fit carried work."""
