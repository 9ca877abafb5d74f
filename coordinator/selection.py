"""Who is asked to take part in a round: a random cohort, the same again for the same seed and round.

Paper, Algorithm 1, line 3: C * |S| of the available clients, without replacement. More than that are invited, because
some decline or drop out (Bonawitz et al. 2019: 130 %).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import UsageError

ROUNDING = 1e-9
"""0.29 * 100 is a little less than 29 in floating point, and 50 * 1.1 a little more than 55."""


@dataclass(frozen=True)
class Selection:
    """`target` updates are wanted from the devices `invited`, in the order they were drawn; nobody: wait for more."""

    target: int
    invited: tuple[str, ...]


def select(
    devices: Sequence[str],
    participation: float,
    over_select: float,
    min_cohort: int,
    seed: int,
    round_number: int,
) -> Selection:
    """Draw the cohort of a round from the available `devices`.

    `participation` is the paper's C, of which no fewer than `min_cohort` devices are made; `over_select` times as many
    are invited, where there are so many. With fewer than `min_cohort` devices nobody is (target 0). The order of
    `devices` does not matter, and a larger `over_select` only adds to those invited. Raises UsageError for a number out
    of its range.
    """
    if not 0 < participation <= 1:
        raise UsageError(f"participation {participation} must be above 0 and at most 1")
    if not 1 <= over_select < math.inf:
        raise UsageError(f"over-selection {over_select} must be at least 1, as in 1.3 for 30 % more than wanted")
    if min_cohort < 1:
        raise UsageError(f"min cohort {min_cohort} must be at least 1")
    drawn = sorted(set(devices))
    if len(drawn) < min_cohort:
        return Selection(0, ())
    random.Random(f"{seed}:{round_number}").shuffle(drawn)
    target = max(min_cohort, int(participation * len(drawn) + ROUNDING))
    return Selection(target, tuple(drawn[: math.ceil(target * over_select - ROUNDING)]))
