"""Failed rounds in a row: which of them count against the run, and the pause after each."""

from __future__ import annotations

import math
from collections.abc import Collection

from fedpatch.coordinator.rounds.run_spec import RunSpec

RETRY_S = 2.0
"""Pause after a failed round. It doubles with each further failed round, up to the waiting time for devices."""


class FailedRounds:
    """Counts the failed rounds since the last round that succeeded (coordinator.cohort.quorum.RULE has the exceptions).

    Args:
        spec: The terms of the run.

    Attributes:
        in_a_row: All of them.
        counted: Those that count: not excused, and later than the last one that counts by the recruiting deadline.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.in_a_row = self.counted = 0
        self._spec = spec
        self._last_counted_at = -math.inf
        # Devices that have left the count in an earlier round: if such a device leaves again, no failure is excused.
        self._left_before: set[str] = set()

    def note_end(self, now: float, left: Collection[str], *, failed: bool, newly_absent: bool) -> None:
        """Note the end of a training round.

        Args:
            now: The time, in seconds.
            left: Devices that left the count of the round.
            newly_absent: Whether it made a device absent for the first time, while absent devices are a minority.
        """
        excused = newly_absent or not self._left_before.issuperset(left)
        self._left_before.update(left)
        if not failed:
            self.in_a_row = self.counted = 0
            self._last_counted_at = -math.inf
            return
        self.in_a_row += 1
        if now >= self._last_counted_at + self._spec.policy.recruit_deadline_s and not excused:
            self.counted += 1
            self._last_counted_at = now

    @property
    def pause_s(self) -> float:
        """The pause before the next round, in seconds: owners' conditions and links change with time, so it grows."""
        if not self.in_a_row:
            return 0.0
        return min(self._spec.wait_s, self._spec.longest_pause_s, math.ldexp(RETRY_S, min(self.in_a_row - 1, 30)))
