"""Devices that are asked and do not report: they are asked less and less, and a round does not depend on them meanwhile.

A device *misses* a round if it declines or gives no answer to the invitation, falls silent, loses its connection for longer
than `rejoin_s`, or is not done at the deadline. A device that fails with a reason has worked, and one that a round left behind
at work after the quorum has missed nothing. After n missed rounds in a row a device

- does not count (coordinator.cohort.quorum), so that it cannot keep a round from its quorum, and
- is asked again in the next round (n = 1), then in every 2nd, 4th, 8th and at last every 16th round.

An update that is committed ends that. A device that restarts is asked in the next round, and so are all of them where a run has
waited in vain for enough others. Where those that count are a minority of the fleet, all are asked and counted
(fedpatch.coordinator.cohort.quorum): then the fault is hardly theirs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from fedpatch.coordinator.cohort.sampling import Selection
from fedpatch.coordinator.rounds.run_records import RoundRecord

LONGEST_PERIOD = 16
"""A device that is absent for long is asked in every so many rounds."""
MAX_ABSENT = 100
"""Devices of which a record keeps how many rounds they missed; with more, those that missed fewest are forgotten."""


def period_of(missed: int) -> int:
    """In every how many rounds a device is asked that missed the last `missed` rounds in which it was asked, 1 or more."""
    return min(1 << (min(missed, 30) - 1), LONGEST_PERIOD)


class Absences:
    """Which devices are absent in a run. `records` are its rounds so far: all that is known is in them."""

    def __init__(self, records: Sequence[RoundRecord] = ()) -> None:
        self._missed: dict[str, int] = {}
        self._due: dict[str, int] = {}
        for record in records:
            self._take(record.round, record.absent)

    @property
    def missed(self) -> Mapping[str, int]:
        """Rounds in a row that each absent device missed."""
        return self._missed

    def note(
        self, number: int, missed: Collection[str], reported: Collection[str], left: Collection[str] = ()
    ) -> Mapping[str, int]:
        """Takes round `number`, which is over; what its record is to keep: missed rounds in a row, by absent device.

        Those that `left` the count are none of them.
        """
        others = {*reported, *left}
        counts = {device: count for device, count in self._missed.items() if device not in others}
        for device in set(missed).difference(left):
            counts[device] = self._missed.get(device, 0) + 1
        kept = heapq.nsmallest(MAX_ABSENT, counts.items(), key=lambda one: (-one[1], one[0]))
        self._take(number, dict(kept))
        return dict(sorted(kept))

    def restarted(self, device: str) -> None:
        """The device began anew: it is asked in the next round, though not counted before it reports."""
        self._due.pop(device, None)

    def ask_all(self) -> None:
        """There are too few others: all absent devices are asked in the next round, though not counted before they report."""
        self._due.clear()

    def skipped(self, number: int) -> set[str]:
        """Absent devices that are not asked in round `number`, where not all count."""
        return {device for device in self._missed if self._due.get(device, 0) > number}

    def choose(
        self, devices: Sequence[str], draw: Callable[[Sequence[str]], Selection], number: int, *, all_count: bool
    ) -> Selection:
        """The cohort of round `number`, drawn from `devices`, which can be asked.

        Args:
            devices: Devices that are online, willing and not held back.
            draw: Draws a cohort of this round from some of them.
            number: Number of the round.
            all_count: Whether absent devices count like the others (fedpatch.coordinator.cohort.quorum.Standing).

        Returns:
            The selection among the devices that are not absent, and in addition, in the same share, absent ones whose
            turn it is.
        """
        counted = [device for device in devices if all_count or device not in self._missed]
        chosen, skipped = draw(counted), self.skipped(number)
        due = sorted(set(devices).difference(counted, skipped))
        share = math.ceil(len(due) * (len(chosen.invited) / len(counted) if counted else 1.0))
        extra = draw(due).invited[:share]
        return Selection(chosen.target, (*chosen.invited, *extra), frozenset(extra))

    def _take(self, number: int, counts: Mapping[str, int]) -> None:
        for device in self._missed.keys() - counts.keys():
            self._due.pop(device, None)
        for device, count in counts.items():
            if count != self._missed.get(device):
                self._due[device] = number + period_of(count)
        self._missed = dict(counts)
