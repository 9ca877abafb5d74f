"""The masked groups of a run: their random drawing, their sizes, and which devices are in the groups of a round.

Random groups follow Bonawitz et al. 2019, "Towards federated learning at scale", section 6: secure aggregation within each
group, and a sum of the sums. The cost of a device is constant in the size of the cohort. The drawing is the same for the same
seed and round. A device stays in the group into which it was first drawn, as far as the devices allow.

With groups redrawn in each round, the sums of a run are a system of linear equations for whatever stays in a device's update:
after 19 to 34 rounds of 20 to 200 devices it has one solution. With the same groups all sums of a run are sums of the same
devices, apart from devices that are missing in a round. So et al. 2023, "Securing secure aggregation: mitigating multi-round
privacy leakage in federated learning", is the idea of fixed batches; here the coordinator keeps them, and no device checks it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

LEAST_GROUP = 8
"""Least size of a masked group; more colluding devices than half of it would see the update of another one."""
MAX_GROUP_OF_U8 = 42
"""In larger groups a value of 8 bits has fewer than seven levels."""
REGISTER = 0
"""Number of the round under which the groups of a run are saved; rounds begin with 1."""


class RunGroups:
    """The group of each device that has taken part in a run.

    Args:
        seed: Seed of the run.
        known: Number of the group and device, as saved by an earlier process.

    Example:
        >>> groups = RunGroups(seed=0)
        >>> groups.join(["a", "b", "c", "d"], size=2, least=2)
        [(0, 'a'), (0, 'd'), (1, 'b'), (1, 'c')]
        >>> groups.of_round(["a", "b", "c", "d", "new"], 1, size=2, least=2, most=3)
        [['a', 'd', 'new'], ['b', 'c']]
    """

    def __init__(self, seed: int, known: Iterable[tuple[int, str]] = ()) -> None:
        self._seed = seed
        self._group_of = {device: number for number, device in known}

    def join(self, devices: Iterable[str], *, size: int, least: int) -> list[tuple[int, str]]:
        """Draw groups of the devices that have none, if they are enough for one; return them, to be saved.

        Args:
            devices: Devices that can be asked.
            size: Greatest size of a group, except where groups were merged.
            least: Least size of a group.
        """
        first = max(self._group_of.values(), default=-1) + 1
        drawn = draw_groups(set(devices) - self._group_of.keys(), self._seed, first + 1, size=size, least=least)
        added = [(number, device) for number, group in enumerate(drawn, first) for device in group]
        self._group_of |= {device: number for number, device in added}
        return added

    def whole(self, order: Sequence[str], count: int) -> tuple[str, ...]:
        """Return the devices of whole groups, and those without a group, in this order, until they are at least `count`.

        Args:
            order: All devices that can be drawn, in a random order.
            count: Number of devices to draw.
        """
        found: dict[str, None] = {}
        for device in order:
            if len(found) >= count:
                break
            group = self._group_of.get(device)
            mates = (device,) if group is None else (one for one in order if self._group_of.get(one) == group)
            found |= dict.fromkeys(mates)
        return tuple(found)

    def of_round(
        self, able: Collection[str], round_number: int, *, size: int, least: int, most: int
    ) -> list[list[str]]:
        """Return the groups of a round: those of the run, without missing devices.

        The devices of a group that fell below `least`, and devices without a group, are a group of this round if they are
        enough; else they are guests of the smallest groups for this round. Later rounds have the groups of the run again.

        Args:
            able: Devices that have accepted.
            size: As for `join`.
            least: As for `join`.
            most: Greatest size of a group with guests; devices beyond it are in none.

        Returns:
            The groups, each sorted by name.
        """
        by_number: dict[int, list[str]] = {}
        for device in sorted(able):
            by_number.setdefault(self._group_of.get(device, -1), []).append(device)
        rest = by_number.pop(-1, [])
        groups = [one for _, one in sorted(by_number.items()) if least <= len(one) <= most]
        rest += [device for one in by_number.values() if one not in groups for device in one]
        if len(rest) >= least:
            return [*groups, *draw_groups(rest, self._seed, round_number, size=size, least=least, most=most)]
        for guest in sorted(rest) if groups else ():
            smallest = min(groups, key=len)
            if len(smallest) < most:
                smallest.append(guest)
        return [sorted(group) for group in groups]


def draw_groups(
    devices: Iterable[str], seed: int, round_number: int, *, size: int, least: int, most: int | None = None
) -> list[list[str]]:
    """Draw the groups of a round.

    Args:
        devices: The devices that accepted, in any order.
        seed: Seed of the run.
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
