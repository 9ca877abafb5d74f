"""The clients of a simulated round: a share of the available ones, drawn as the coordinator draws a cohort."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpatch.coordinator.cohort.quorum import ROUNDING
from fedpatch.coordinator.cohort.selection import Selection, draw
from fedpatch.shared.errors import UsageError


def select(
    devices: Sequence[str],
    participation: float,
    over_select: float,
    min_cohort: int,
    seed: int,
    round_number: int,
) -> Selection:
    """Draw the cohort of a round from the available devices.

    Args:
        devices: Devices that can be invited, in any order.
        participation: Share of the devices that the round is meant for, above 0 and at most 1 (the paper's C).
        over_select: Invitations per device that the round is meant for, at least 1. A larger number only adds devices.
        min_cohort: Devices that the round is meant for in any case. With fewer devices available none is invited.
        seed: Seed of the run.

    Returns:
        The selection, the same for the same devices, seed and round.

    Raises:
        UsageError: A number is out of its range.

    Example:
        >>> select(["pi-1", "pi-2", "pi-3"], 0.5, 2.0, 1, seed=0, round_number=1)
        Selection(target=1, invited=('pi-2', 'pi-3'), absent=frozenset())
    """
    if not 0 < participation <= 1:
        raise UsageError(f"participation {participation} must be above 0 and at most 1")
    if not 1 <= over_select < math.inf:
        raise UsageError(f"over-selection {over_select} must be at least 1, as in 1.3 for 30 % more than wanted")
    if min_cohort < 1:
        raise UsageError(f"min cohort {min_cohort} must be at least 1")
    available = len(set(devices))
    if available < min_cohort:
        return Selection(0, ())
    target = max(min_cohort, int(participation * available + ROUNDING))
    return draw(devices, target, over_select, seed, round_number)
