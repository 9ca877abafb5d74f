"""The devices of a run that count: sets of names in, numbers for the quorum rule (coordinator.cohort.quorum) out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedpatch.coordinator.cohort.quorum import Standing


class DeviceCount:
    """Counts the devices of a run.

    Args:
        least: Devices that the fleet counts as at least: the setting `devices`.

    Attributes:
        able: Devices that this run has seen with its task, also in an earlier epoch.
        invitable: Devices that can be invited now.
        absent: Missed rounds in a row by absent device (fedpatch.coordinator.rounds.missed_rounds).
        unsteady: Devices that were absent too often to count (fedpatch.coordinator.rounds.missed_rounds).
        awaited: Devices of the fleet's last run, which the first round waits for by name.

    Example:
        >>> count = DeviceCount(least=3)
        >>> for device in ("pi-1", "pi-2", "pi-3", "pi-4"):
        ...     count.note(device, able=True, out=False, invitable=device != "pi-4")
        >>> count.hold({"pi-3"})
        >>> count.missing, count.wanted, count.standing
        ({'pi-4'}, 3, Standing(fleet=3, left=0, missing=0, unsteady=0))
    """

    def __init__(self, least: int = 1) -> None:
        self.able: set[str] = set()
        self.invitable: set[str] = set()
        self.absent: Mapping[str, int] = {}
        self.unsteady: Collection[str] = frozenset()
        self.awaited: frozenset[str] = frozenset()
        self._least = least
        # Held devices, also those that this run has never seen.
        self._held: frozenset[str] = frozenset()
        # Devices that cannot take part in the run, and offenders.
        self._out: set[str] = set()
        self._last_run: frozenset[str] = frozenset()
        # Missing devices that the run has waited for in vain, and the number of devices that were missing then without a name.
        self._given_up: set[str] = set()
        self._unnamed = 0

    def note(self, device: str, *, able: bool, out: bool, invitable: bool) -> None:
        """Note the facts of a device.

        Args:
            able: Whether it has been seen with the task; a device stays able.
            out: Whether it cannot take part in the run, or is an offender.
            invitable: Whether it can be invited now.
        """
        if able:
            self.able.add(device)
        for devices, belongs in ((self._out, out), (self.invitable, invitable)):
            (devices.add if belongs else devices.discard)(device)
        if out or invitable:
            self._given_up.discard(device)

    def hold(self, devices: Collection[str]) -> None:
        """Replace the set of held devices."""
        self._held = frozenset(devices)
        self._given_up -= self._held

    def forget(self, device: str) -> None:
        """Forget a device that another one replaces."""
        for devices in (self.able, self.invitable, self._out, self._given_up):
            devices.discard(device)

    def expect(self, devices: Collection[str]) -> None:
        """Note the devices that the fleet's last run has seen with its task; they count once they are there."""
        self._last_run = self.awaited = frozenset(devices)

    def give_up(self) -> None:
        """Stop counting the devices that are missing now until they are back."""
        self._given_up = self.missing
        self._unnamed = max(0, self._least - len(self.able))

    @property
    def held(self) -> set[str]:
        """Able devices that are held."""
        return self.able & self._held

    @property
    def held_of_fleet(self) -> set[str]:
        """Held devices that this run or the fleet's last run has seen; without a last run all held devices."""
        return set(self._held & (self.able | self._last_run) if self._last_run else self._held)

    @property
    def left(self) -> set[str]:
        """Able devices that have left the count for good: they cannot take part in the run, or are offenders."""
        return (self.able & self._out) - self._held

    @property
    def missing(self) -> set[str]:
        """Devices that count and cannot be invited now."""
        return self.able - self._held - self._out - self.invitable

    @property
    def missing_by_name(self) -> set[str]:
        """Missing devices, and those of the last run that this run has not seen while its first round waits for them."""
        return self.missing | (self.awaited - self._held - self.able)

    @property
    def wanted(self) -> int:
        """The number of devices that the first round waits for."""
        counted = self._least - len(self.held) - self._held_unseen
        return min(self._least, max(counted, len((self.able | self._last_run) - self._held - self.left)))

    @property
    def standing(self) -> Standing:
        """The numbers for the quorum rule."""
        held, left = self.held, self.left
        least = self._least - self._held_unseen
        unnamed = min(self._unnamed, max(0, least - len(self.able)))
        out = self._given_up | (self.able.intersection(self.absent) - held - left)
        unsteady = self.able.intersection(self.unsteady) - held - left - out
        return Standing(max(least, len(self.able)) - len(held), len(left), len(out) + unnamed, len(unsteady))

    @property
    def _held_unseen(self) -> int:
        """The number of held devices that this run has not seen and that `least` devices include.

        These are held devices of the fleet's last run. In a fleet without an earlier run they are all held devices. They are a
        minority of `least` at most, since the devices in place of some held long ago may be among `least`.
        """
        unseen = self._held - self.able
        return min(len(unseen & self._last_run if self._last_run else unseen), max(0, (self._least - 1) // 2))
