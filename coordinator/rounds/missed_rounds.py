"""Missed rounds: absent devices are invited less and less often, and rounds do not depend on them.

A device *misses* a round if it declines, does not answer the invitation in time, falls silent, loses its connection for longer
than `rejoin_s`, or has not reported at the deadline. A device that fails with a reason misses the round only if the round
fails, or if it has failed or missed another of the last 16 rounds. A device that is not there to be invited misses the round
only if the round fails and it is not absent yet. A device that was working when the round ended after its quorum misses
nothing. After n missed rounds in a row a device is *absent*:

- It does not count (coordinator.cohort.quorum), so that it cannot prevent the quorum of a round.
- It is invited again in the next round (n = 1), then in every 2nd, 4th, 8th and at last every 16th round.

A committed update ends the absence. The device is then *unsteady*: it is invited, but does not count until 16 rounds later, and
after each further absence twice as long. So devices that come and go cost one round, and devices of several kinds two: those
that do not answer end a round before the others are late. Unsteady devices count while the others are no majority of the fleet.

A device that restarts is invited in the next round. All absent devices are invited in the
next round when a run has waited in vain for enough other devices. If the devices that count are a minority of the fleet, all
are invited and counted (fedpatch.coordinator.cohort.quorum), because the devices are then probably not the cause.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from fedpatch.coordinator.cohort.selection import Selection
from fedpatch.coordinator.rounds.round_record import RoundRecord

LONGEST_PERIOD = 16
"""Rounds between two invitations of a device that has been absent for long."""
MAX_ABSENT = 100
"""Greatest number of absent devices in a record; beyond it, devices with the fewest missed rounds are left out."""
PROBATION = 16
"""Rounds for which a device does not count after its first absence; twice as many after each further one."""
_LONGEST_PROBATION = 1024


def period_of(missed: int) -> int:
    """Return the rounds between two invitations of a device that missed `missed` rounds in a row, 1 or more."""
    return min(1 << (min(missed, 30) - 1), LONGEST_PERIOD)


class Absences:
    """The absent devices of a run, derived from the records of its rounds.

    Failures are not in the records: a resumed run begins to count them anew.
    """

    def __init__(self, records: Sequence[RoundRecord] = ()) -> None:
        self._missed: dict[str, int] = {}
        self._due: dict[str, int] = {}
        # The last round that a device has missed, or in which it has failed with a reason.
        self._missed_in: dict[str, int] = {}
        # The number of absences and first failures of each device, and the round from which an unsteady device counts again.
        self._lapses: dict[str, int] = {}
        self._counts_from: dict[str, int] = {}
        self._last = 0
        for record in records:
            self._take(record.round, record.absent)

    @property
    def missed(self) -> Mapping[str, int]:
        """Missed rounds in a row by absent device."""
        return self._missed

    @property
    def ever(self) -> Collection[str]:
        """The devices that were absent at some time, or have failed."""
        return self._lapses.keys()

    @property
    def unsteady(self) -> set[str]:
        """The devices that take part, but do not count in the next round since they were absent too often."""
        return {device for device, at in self._counts_from.items() if at > self._last + 1} - self._missed.keys()

    def note(
        self,
        number: int,
        missed: Collection[str],
        reported: Collection[str],
        left: Collection[str] = (),
        failed: Collection[str] = (),
        away: Collection[str] = (),
    ) -> Mapping[str, int]:
        """Note a round that is over.

        Args:
            left: Devices that left the count; they are not absent.
            failed: Devices that failed with a reason of their own.
            away: Devices that cannot be invited now. Beyond MAX_ABSENT they are left out before others.

        Returns:
            Missed rounds in a row by absent device, for the record of the round.
        """
        again = {device for device in failed if self._missed_before(device, number)}
        for device in set(failed).difference(left):
            self._missed_in[device] = number
            if device not in again:
                self._lapses[device] = self._lapses.get(device, 0) + 1
        missed = {*missed, *again}
        others = {*reported, *left}
        counts = {device: count for device, count in self._missed.items() if device not in others}
        for device in set(missed).difference(left):
            counts[device] = self._missed.get(device, 0) + 1
        kept = heapq.nsmallest(MAX_ABSENT, counts.items(), key=lambda item: (-item[1], item[0] in away, item[0]))
        self._take(number, dict(kept))
        return dict(sorted(kept))

    def restarted(self, device: str) -> None:
        """Invite a restarted device in the next round; it does not count before it reports."""
        self._due.pop(device, None)

    def ask_all(self) -> None:
        """Invite all absent devices in the next round; they do not count before they report."""
        self._due.clear()

    def skipped(self, number: int) -> set[str]:
        """Return the absent devices that are not invited in round `number`."""
        return {device for device in self._missed if self._due.get(device, 0) > number}

    def choose(
        self,
        devices: Sequence[str],
        draw: Callable[[Sequence[str]], Selection],
        number: int,
        *,
        all_count: bool,
        unsteady_count: bool = True,
    ) -> Selection:
        """Choose the cohort of a round.

        Args:
            devices: Devices that can be invited: online, willing and not held back.
            draw: Draws a cohort of this round from some of the devices.
            all_count: Whether absent devices count like the others (fedpatch.coordinator.cohort.quorum.Standing).
            unsteady_count: Whether unsteady devices count like the others.

        Returns:
            A selection of the devices that count, and the same share of the unsteady ones and of the absent ones that are due.
        """
        out = set() if all_count else {*self._missed, *(() if unsteady_count else self.unsteady)}
        counted = [device for device in devices if device not in out]
        chosen, skipped = draw(counted), self.skipped(number)
        due = sorted(set(devices).difference(counted, skipped))
        share = math.ceil(len(due) * (len(chosen.invited) / len(counted) if counted else 1.0))
        extra = draw(due).invited[:share]
        return Selection(chosen.target, (*chosen.invited, *extra), frozenset(extra))

    def _missed_before(self, device: str, number: int) -> bool:
        missed_in = self._missed_in.get(device)
        return device in self._missed or (missed_in is not None and number - missed_in <= LONGEST_PERIOD)

    def _take(self, number: int, counts: Mapping[str, int]) -> None:
        self._last = number
        for device in self._missed.keys() - counts.keys():
            self._due.pop(device, None)
            probation = min(PROBATION << min(self._lapses[device] - 1, 10), _LONGEST_PROBATION)
            self._counts_from[device] = number + 1 + probation
        for device in counts.keys() - self._missed.keys():
            self._lapses[device] = self._lapses.get(device, 0) + 1
        for device, count in counts.items():
            if count != self._missed.get(device):
                self._due[device] = number + period_of(count)
                self._missed_in[device] = number
        self._missed = dict(counts)
