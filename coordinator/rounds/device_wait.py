"""The wait for enough devices before a round: its length, and the devices that it gives up (coordinator.cohort.quorum)."""

from __future__ import annotations

import math

from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.missed_rounds import Absences
from fedpatch.coordinator.rounds.round_phases import RETURN_S, STARTING_S
from fedpatch.coordinator.rounds.round_size import RoundSize

SETTLE_S = 5.0
"""Time without an arrival after which a first round begins without the devices in place of held ones."""


class DeviceWait:
    """Waits for the devices of the next round.

    Args:
        wait_s: The longest wait, in seconds; STARTING_S longer while devices have not loaded their task yet.
        devices: Devices that the first round waits for.
        size: Counts the devices.
        fleet: The known devices.
        absences: The absent devices.
        resumed: Whether the run has begun in an earlier process: then no round is a first one that waits for all.

    Attributes:
        first: Whether no round of this process has begun with its own selection of devices.
        looks_at: The time at which `wait_for_enough` may change without an arrival; None while the run does not wait.
    """

    def __init__(
        self, wait_s: float, devices: int, size: RoundSize, fleet: Fleet, absences: Absences, *, resumed: bool
    ) -> None:
        self.first = True
        self.looks_at: float | None = None
        self._wait_s = wait_s
        self._devices = devices
        self._size = size
        self._fleet = fleet
        self._absences = absences
        self._resumed = resumed
        self._since: float | None = None
        # The time at which the last device arrived.
        self._arrived_at = -math.inf

    def note_device(self, now: float) -> None:
        """Note that one device more can be invited."""
        self._arrived_at = now

    def note_first_selection(self) -> None:
        """Note that a round of this process has selected its devices: the next one waits for a quorum only."""
        self.first = False
        self._fleet.count.awaited = frozenset()

    def reset(self) -> None:
        """End the wait, whatever its result; the next one begins anew."""
        self._since = self.looks_at = None

    def wait_for_enough(self, now: float, number: int, due_at: float, *, evaluates: bool) -> bool:
        """Return whether a round can begin: enough devices are present, or the run has waited in vain for the others.

        The first call that returns False begins the wait. After min(RETURN_S, wait_s) the missing devices do not count any more
        until they are back, and at last absent devices count too. The first round of a run waits for all.

        Args:
            now: The time, in seconds.
            due_at: The time at which it is due. Before that, no wait ends in vain.
            evaluates: Whether it is an evaluate round.
        """
        required = self._size.required(number, evaluates=evaluates, first=self.first)
        present = self._size.present(number)
        settles_at = self._settles_at(present, required)
        if present >= required and (settles_at is None or (now >= settles_at and not self._fleet.starting)):
            return True
        self._since = now if self._since is None else self._since
        self.looks_at = self.ends_at(due_at)
        if settles_at is not None and now < settles_at:
            self.looks_at = min(self.looks_at, settles_at)
            return False
        if self.first and not self._resumed:
            return False
        give_up_at = self._since + min(RETURN_S, self._wait_s)
        if now < give_up_at:
            self.looks_at = give_up_at
            return False
        self._fleet.count.give_up()
        if self._size.present(number) >= self._size.needed(evaluates=evaluates):
            return True
        self._absences.ask_all()
        return self._size.present_at_all >= self._size.needed(evaluates=evaluates)

    def ends_at(self, due_at: float) -> float:
        """Return the time at which the run fails without enough devices, for a round that is due at `due_at`."""
        assert self._since is not None, "the run does not wait"
        return max(self._since, due_at) + self._wait_s + (STARTING_S if self._fleet.starting else 0.0)

    def _settles_at(self, present: int, required: int) -> float | None:
        """Return when a first round with fewer than `devices` devices may begin; None if held devices are not the cause.

        Another device may have taken the place of a held one, and may still be on its way.
        """
        if not self.first or present >= self._devices or present < required:
            return None
        return self._arrived_at + SETTLE_S if self._fleet.count.wanted < self._devices else None
