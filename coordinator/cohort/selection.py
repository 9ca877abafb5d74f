"""Sampling: the devices that a round invites.

The cohort is random, and the same for the same seed and round. Paper, Algorithm 1, line 3: C * |S| of the clients, drawn
without replacement from the available ones. The round invites more (coordinator.cohort.over_selection).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fedpatch.coordinator.cohort.over_selection import invitations


@dataclass(frozen=True)
class Selection:
    """The cohort of a round.

    Attributes:
        target: Updates that the round is meant to collect.
        invited: The devices to invite, in the order of the draw. Empty: the run waits for more devices.
        absent: Invited devices that `target` does not count (fedpatch.coordinator.rounds.missed_rounds).
    """

    target: int
    invited: tuple[str, ...]
    absent: frozenset[str] = frozenset()


def draw(devices: Sequence[str], target: int, over_select: float, seed: int, round_number: int) -> Selection:
    """Draw the cohort of a round that is meant for a given number of devices.

    Args:
        devices: Devices that can be invited, in any order.
        target: Devices that the round is meant for; fewer may be available.
        over_select: Invitations per device that the round is meant for, at least 1.
        seed: Seed of the run.

    Returns:
        The selection, the same for the same devices, seed and round.
    """
    drawn = sorted(set(devices))
    random.Random(f"{seed}:{round_number}").shuffle(drawn)
    return Selection(target, tuple(drawn[: invitations(target, over_select)]))


HELP = {
    "devices": "Least size of the fleet; the first round waits for them.",
    "participation": "Share of the fleet that a round aims for.",
    "min_cohort": "Least number of devices that a round aims for and that must report.",
    "quorum": "Share of the devices aimed for that must report.",
    "max_failed_rounds": "Failed rounds in a row that end the run; failures within recruit_deadline_s count as one.",
    "wait_s": "Longest wait for the devices of a round, 300 s more while devices start; then the run fails.",
}
"""Help texts of the settings of this rule."""
