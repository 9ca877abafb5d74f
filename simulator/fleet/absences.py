"""When a device of a simulated fleet is absent: a share of the time (`away_share`), for `away_s` on average."""

from __future__ import annotations

import random
from collections.abc import Callable

from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.virtual_clock import VirtualClock


class DeviceAbsences:
    """The absences of one device: presence and absence follow each other, both with exponential lengths.

    Args:
        terms: The study.
        number: Number of the device.
        agenda: The clock of the study.
        come: Called when the device comes, also if it is there already.
        leave: Called when it leaves, also if it has left already.
    """

    def __init__(
        self,
        terms: FleetTerms,
        number: int,
        agenda: VirtualClock,
        come: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self._share, self._away_s = terms.away_share, terms.away_s
        self._agenda = agenda
        self._come = come
        self._leave = leave
        self._random = random.Random(f"{terms.seed}:{number}:absences")

    def begin(self) -> None:
        """Begin the study, present or absent."""
        if self._share and self._random.random() < self._share:
            self._agenda.after(self._random.expovariate(1 / self._away_s), self._return)
        else:
            self._return()

    def _return(self) -> None:
        self._come()
        if self._share:
            leaves_per_s = self._share / (self._away_s * (1 - self._share))
            self._agenda.after(self._random.expovariate(leaves_per_s), self._go_away)

    def _go_away(self) -> None:
        away_s = self._random.expovariate(1 / self._away_s)
        self._leave()
        self._agenda.after(away_s, self._return)
