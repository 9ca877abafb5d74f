"""Quorum: the number of devices that a round is meant for, and the number of updates that it needs.

`RULE` is the text of the quorum rule for people, which docs/explanation/concepts.md repeats; a test compares them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ROUNDING = 1e-9
"""Added before rounding down, subtracted before rounding up: in floating point 0.29 * 100 is a little less than 29, and
50 * 1.1 a little more than 55.
"""

RULE = (
    "A round is meant for `participation` of the fleet, but no fewer than `min_cohort` devices. "
    "The fleet is all devices that this run has seen with its task, or `devices` if that is more. "
    "A device counts also while it is offline, unwilling or silent.",
    "Of the devices that a round is meant for, the share `quorum` must report, and no fewer than `min_cohort`. "
    "Otherwise the round fails and the model stays as it was. "
    "While fewer devices can be asked, no round begins: the run names the missing devices and waits, for `wait_s` at most, "
    "and 300 s longer while devices say that they are starting. Then it fails.",
    "Held devices (drained, quarantined or revoked) do not count, also before the first round. "
    "Neither do devices that cannot take part in this run, and offenders. "
    "An offender is a device whose update was refused for an offence; it is not asked again in this run. "
    "Offenders and devices that cannot take part never reduce the updates needed from two or more to one. "
    "The run fails after `max_failed_rounds` failed rounds in a row; one in which a device left the count for the first time "
    "is not among them, nor is one that made a device absent for the first time while absent devices are a minority.",
    "Missing devices that a run has waited for in vain, 60 s or `wait_s` if that is less, do not count until they are back. "
    "Neither do absent devices, which missed the last round in which they were asked or were away when a round failed, and for "
    "a while those that were absent. "
    "But if they are half of the fleet or more, all of them count: a minority never makes the model.",
    "A round reaches `target_ua` only if it succeeds and as many devices as its quorum measured a user accuracy.",
)
"""The rule, as paragraphs."""


@dataclass(frozen=True)
class Standing:
    """The devices of a run in numbers.

    Attributes:
        fleet: All devices except held devices.
        left: Devices of the fleet that have left the count for good.
        missing: Other devices of the fleet that the run has waited for in vain, or that are absent.
        unsteady: Further devices that take part, and were absent too often (fedpatch.coordinator.rounds.missed_rounds).
    """

    fleet: int
    left: int = 0
    missing: int = 0
    unsteady: int = 0

    @property
    def all_count(self) -> bool:
        """True if missing devices count too, because they are at least half of the devices that have not left."""
        return 2 * self.missing >= self.fleet - self.left

    @property
    def unsteady_count(self) -> bool:
        """True if unsteady devices count too, because the other devices alone are no majority."""
        return 2 * (self.missing + self.unsteady) >= self.fleet - self.left

    @property
    def counted(self) -> int:
        """The number of devices that `participation` is a share of."""
        unsteady = 0 if self.unsteady_count else self.unsteady
        return self.fleet - self.left - (0 if self.all_count else self.missing + unsteady)


def updates_needed(meant: int, quorum: float, min_cohort: int) -> int:
    """Return the number of updates that a round needs to succeed.

    Args:
        meant: Devices that the round is meant for.
        quorum: Share of them that must report, above 0 and at most 1.
        min_cohort: Devices that must report in any case, 1 or more.
    """
    return max(min_cohort, _share(meant, quorum))


def without(meant: int, left: int, quorum: float) -> int:
    """Return the number of devices that a round is meant for after some have left the count.

    A round that needed two updates or more never becomes one that needs a single update.

    Args:
        meant: Devices that the round was meant for.
        left: Devices of these that have left the count.
        quorum: Share of the devices that must report, above 0 and at most 1.
    """
    least = min(2, _share(meant, quorum))
    rest = max(0, meant - max(0, left))
    while _share(rest, quorum) < least:
        rest += 1
    return rest


def devices_meant(standing: Standing, participation: float, quorum: float, min_cohort: int) -> int:
    """Return the number of devices that the next round is meant for; it may be more than can be asked now.

    Args:
        standing: The devices that count.
        participation: Share of these devices that a round is meant for, above 0 and at most 1.
        quorum: Share of the round's devices that must report, above 0 and at most 1.
        min_cohort: Devices that must report in any case, 1 or more.
    """
    of_fleet = int(participation * standing.fleet + ROUNDING)
    of_counted = int(participation * standing.counted + ROUNDING)
    return max(min_cohort, without(of_fleet, of_fleet - of_counted, quorum))


def _share(devices: int, quorum: float) -> int:
    return math.ceil(quorum * devices - ROUNDING)
