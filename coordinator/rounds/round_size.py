"""The number of devices that the next round of a run is meant for, and needs (coordinator.cohort.quorum has the rule)."""

from __future__ import annotations

from collections.abc import Collection

from fedpatch.coordinator.cohort.quorum import devices_meant, updates_needed
from fedpatch.coordinator.rounds.carried_rounds import CarriedRounds
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.missed_rounds import Absences
from fedpatch.coordinator.rounds.run_spec import RunSpec


class RoundSize:
    """Counts the devices for the next round.

    Args:
        spec: The terms of the run.
        fleet: The known devices.
        absences: The absent devices.
        carried: Work of earlier rounds; an update that waits for the next round counts like a device that is present.
    """

    def __init__(self, spec: RunSpec, fleet: Fleet, absences: Absences, carried: CarriedRounds) -> None:
        self._spec = spec
        self._fleet = fleet
        self._absences = absences
        self._carried = carried

    def meant(self, *, evaluates: bool) -> int:
        """Return the number of devices that the next round is meant for.

        Args:
            evaluates: Whether it is an evaluate round.
        """
        spec, policy, standing = self._spec, self._spec.policy, self._fleet.count.standing
        if evaluates:
            return max(1, devices_meant(standing, spec.evaluate_participation, policy.quorum, 1))
        if spec.carry is not None and spec.carry.concurrency is not None:
            return spec.carry.concurrency
        least = self._group_or(max(policy.min_cohort, policy.quorum_updates or 0))
        return max(least, devices_meant(standing, spec.participation, policy.quorum, policy.min_cohort))

    def needed(self, *, evaluates: bool) -> int:
        """Return the number of devices that the next round needs: for its quorum, and for the smallest masked group."""
        policy = self._spec.policy
        if evaluates:
            return 1
        if policy.quorum_updates is not None:
            return max(self._group_or(policy.min_cohort), policy.quorum_updates)
        return self._group_or(updates_needed(self.meant(evaluates=False), policy.quorum, policy.min_cohort))

    def required(self, number: int, *, evaluates: bool, first: bool) -> int:
        """Return the number of devices that must be `present` before a round; held devices are not among them.

        Args:
            evaluates: Whether it is an evaluate round.
            first: Whether it waits for all devices, as the first round of a run does; else a quorum is enough.
        """
        needed = self.needed(evaluates=evaluates)
        if not first:
            return needed
        return max(needed, self._fleet.count.wanted - self._fleet.count_eligible(self._uncounted(number)))

    def present(self, number: int) -> int:
        """Return the number of devices that count and can be invited to round `number`, or whose update waits for it."""
        return self._present_without(self._uncounted(number))

    @property
    def present_at_all(self) -> int:
        """The number of devices that can be invited, or whose update waits, with absent devices."""
        return self._present_without(())

    def _present_without(self, devices: Collection[str]) -> int:
        waiting = self._carried.waiting
        return self._fleet.present - self._fleet.count_eligible({*devices, *waiting}) + len(waiting)

    def _uncounted(self, number: int) -> set[str]:
        """Return the devices for which no round begins (coordinator.rounds.missed_rounds).

        A device that has missed one round only may stand in for another one in the next round.
        """
        standing, absences = self._fleet.count.standing, self._absences
        if standing.all_count:
            return set()
        again = {device for device, rounds in absences.missed.items() if rounds > 1}
        return again | absences.skipped(number) | (set() if standing.unsteady_count else absences.unsteady)

    def _group_or(self, number: int) -> int:
        """Return the number of devices, or the size of the smallest masked group if that is larger."""
        secure = self._spec.secure
        # A relay is one device here, and its site has a group.
        return number if secure is None or self._fleet.has_relay_of_sums() else max(number, secure.least)
