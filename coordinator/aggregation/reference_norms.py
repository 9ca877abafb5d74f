"""The reference of each part's norm in a round: the lower median of the devices' norms.

With one or two updates that median is the norm of a single device, so references of earlier rounds (`References`) are added
until there are three values. The median is the reference because fewer than half of the devices cannot move it beyond the
values of the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.coordinator.aggregation.medians import lower_median
from fedpatch.coordinator.aggregation.update_norms import Part

References = Mapping[Part, tuple[float, ...]]
"""References of earlier rounds by part, the newest first, at most `KEPT_REFERENCES` of each."""

KEPT_REFERENCES = 2
"""One update and two references, or two updates and one reference, are the three values that a median needs to outvote one."""


def references(cohort: Mapping[str, Mapping[Part, float]], past: References) -> dict[Part, float]:
    """Return the reference of each part in this round.

    Args:
        cohort: Norms per unit (`Pace.per_unit`) by part, of each device.
        past: References of earlier rounds; with fewer than three devices they are added to the norms.

    Returns:
        The lower median by part; empty without devices.
    """
    if not cohort:
        return {}
    more = KEPT_REFERENCES + 1 - len(cohort)
    return {
        part: lower_median([*(one[part] for one in cohort.values()), *past.get(part, ())[: max(0, more)]])
        for part in next(iter(cohort.values()))
    }


def remembered(
    usual: Mapping[Part, float], limits: Mapping[Part, float], past: References, updates: int
) -> dict[Part, tuple[float, ...]]:
    """Return the references to keep after a round.

    Args:
        usual: The references of the round.
        limits: The limits of the round per unit. The reference of a single update is kept up to its limit.
        past: The references before the round.
    """
    now = {}
    for part, value in usual.items():
        kept = value if updates > 1 else min(value, limits.get(part, value))
        now[part] = (kept, *past.get(part, ()))[:KEPT_REFERENCES]
    return {**past, **now}
