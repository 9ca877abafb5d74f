"""Devices whose updates are far from the updates of the others, round after round.

Bounds and rule of aggregation (`coordinator.aggregation`) take a share of each update's change away, its *pull*. As a model
converges, most changes become small, and now this honest device, now that one is pulled far for a round or two. A device that
is broken, has data unlike all others, or lies is pulled far in each round in which it reports, or once by nearly everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from fedpatch.coordinator.rounds.round_record import RoundRecord

FAR, MIDDLE = 0.75, 0.25
"""An update is far if more than FAR of its change is taken away, and less than MIDDLE of the median update's."""
UNUSUAL_ROUNDS, UNUSUAL_PULL = 5, 0.9999
"""Rounds in a row after which a device is shown to the operator, and the pull at which it is shown at once: its change was some
10,000 times the bound. Both as in the alert FedpatchUpdatePulledFar."""
MAX_FAR = 64
"""Greatest number of devices in a record; beyond it, devices with the fewest rounds in a row are left out."""


class FarUpdates:
    """The devices whose updates were far from the others in the last rounds of a run.

    Args:
        records: The rounds so far; the last one has the counts.

    Attributes:
        counts: Rounds in a row by device (`far_rounds`).
    """

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        self.counts: Mapping[str, int] = records[-1].far if records else {}

    def end_round(self, record: RoundRecord, reported: Collection[str]) -> Mapping[str, int]:
        """Return the counts after a round; a failed round and an evaluate round change none.

        Args:
            reported: Devices and masked groups whose updates count in it.
        """
        if record.outcome == "aggregated":
            self.counts = far_rounds(self.counts, record.pulls, record.pull_quantiles.get("p50", 0.0), reported)
        return self.counts


def far_rounds(
    before: Mapping[str, int], pulls: Mapping[str, float], median: float, reported: Collection[str]
) -> dict[str, int]:
    """Return how often in a row the update of a device was far, by device.

    Args:
        before: The same after the round before.
        pulls: The pulls of this round, of the devices that were pulled farthest.
        median: The median pull of this round.
        reported: Devices and masked groups whose updates count in this round; the count of all others stays.

    Example:
        >>> far_rounds({"pi-1": 2, "pi-2": 4, "pi-3": 1}, {"pi-1": 0.9, "pi-2": 0.3}, 0.0, {"pi-1", "pi-2"})
        {'pi-1': 3, 'pi-3': 1}
    """
    counts = {device: count for device, count in before.items() if device not in reported}
    if median < MIDDLE:
        counts |= {device: before.get(device, 0) + 1 for device, pull in pulls.items() if pull > FAR}
    return dict(sorted(heapq.nsmallest(MAX_FAR, counts.items(), key=lambda item: (-item[1], item[0]))))


def unusual_devices(far: Mapping[str, int], pulls: Mapping[str, float]) -> list[str]:
    """Return the devices that are far in this round and are not just honest ones for which it happens.

    Args:
        far: Rounds in a row, by device (`far_rounds`).
        pulls: The pulls of this round.
    """
    here = ((device, far[device], pull) for device, pull in sorted(pulls.items()) if device in far)
    return [device for device, rounds, pull in here if rounds >= UNUSUAL_ROUNDS or pull > UNUSUAL_PULL]
