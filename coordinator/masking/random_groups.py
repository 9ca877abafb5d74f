"""The drawing of masked groups: a random partition of the devices that have no group yet, the same for the same seed and round.

Random groups follow Bonawitz et al. 2019, "Towards federated learning at scale", section 6: secure aggregation within each
group, and a sum of the sums. The cost of a device is constant in the size of the cohort.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

LEAST_GROUP = 8
"""Least size of a masked group; more colluding devices than half of it would see the update of another one."""
MAX_GROUP_OF_U8 = 42
"""In larger groups a value of 8 bits has fewer than seven levels."""


def draw_groups(
    devices: Iterable[str], seed: int, round_number: int, *, size: int, least: int, most: int | None = None
) -> list[list[str]]:
    """Draw the groups of a round.

    Args:
        devices: The devices that accepted, in any order.
        seed: Seed of the run.
        round_number: Number of the round.
        size: Greatest size of a group, except where groups were merged.
        least: Least size of a group.
        most: Greatest size of a group, `size` or more; None: `largest_group`. Devices that fit only into a larger group are in
            none.

    Returns:
        The groups, each sorted by name. Sizes differ by at most one. Groups below `least` are merged, up to `largest_group`.
        Empty if there are fewer devices than `least`.

    Raises:
        ValueError: `least` is above `size`, or below 2.

    Example:
        >>> draw_groups(["pi-1", "pi-2", "pi-3", "pi-4"], seed=0, round_number=1, size=2, least=2)
        [['pi-1', 'pi-4'], ['pi-2', 'pi-3']]
    """
    if not 2 <= least <= size:
        raise ValueError(f"groups of at least {least} and at most {size} devices cannot be drawn")
    drawn = sorted(set(devices))
    if len(drawn) < least:
        return []
    random.Random(f"groups {seed}:{round_number}").shuffle(drawn)
    if most is not None:
        drawn = drawn[: most * (len(drawn) // least)]
    count = len(group_sizes(len(drawn), size=size, least=least))
    return [sorted(drawn[at::count]) for at in range(count)]


def group_sizes(devices: int, *, size: int, least: int) -> list[int]:
    """Return the sizes of the groups; `devices` must be at least `least`.

    Args:
        devices: Number of devices that accepted.
        size: Greatest size of a group, except where groups were merged.
        least: Least size of a group.

    Example:
        >>> group_sizes(70, size=32, least=8)
        [24, 23, 23]
    """
    count = min(-(-devices // size), devices // least)
    return [len(range(at, devices, count)) for at in range(count)]


def largest_group(size: int, least: int) -> int:
    """Return the greatest number of devices that a group of `draw_groups` can have.

    Merging happens where one group would be above `size` and two below `least`: up to 2 * least - 1 devices.
    """
    return max(size, 2 * least - 1)
