"""Who is asked to take part in a round: a random cohort, the same again for the same seed and round.

Paper, Algorithm 1, line 3: C * |S| of the available clients, without replacement. More than that are invited, because
some decline or drop out (Bonawitz et al. 2019: 130 %).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fedpatch.shared.errors import UsageError

ROUNDING = 1e-9
"""0.29 * 100 is a little less than 29 in floating point, and 50 * 1.1 a little more than 55."""


@dataclass(frozen=True)
class Selection:
    """`target` updates are wanted from the devices `invited`, in the order they were drawn; nobody: wait for more.

    `absent` are those of them for which the round is not meant (fedpatch.coordinator.rounds.missed_rounds).
    """

    target: int
    invited: tuple[str, ...]
    absent: frozenset[str] = frozenset()


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
    available = len(set(devices))
    if available < min_cohort:
        return Selection(0, ())
    target = max(min_cohort, int(participation * available + ROUNDING))
    return draw(devices, target, over_select, seed, round_number)


def draw(devices: Sequence[str], target: int, over_select: float, seed: int, round_number: int) -> Selection:
    """Draw the cohort of a round that is meant for `target` devices from the available `devices`.

    Args:
        devices: Devices that can be asked, in any order.
        target: Devices that the round is meant for; there may be fewer available.
        over_select: Times as many are invited, where there are so many.
        seed: Seed of the run.
        round_number: Number of the round.

    Returns:
        The selection, the same for the same devices, seed and round.
    """
    drawn = sorted(set(devices))
    random.Random(f"{seed}:{round_number}").shuffle(drawn)
    return Selection(target, tuple(drawn[: math.ceil(target * over_select - ROUNDING)]))
