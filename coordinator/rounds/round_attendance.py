"""The attendance of a round that is over: which devices it makes absent (coordinator.rounds.missed_rounds) or shows as mute."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedpatch.coordinator.rounds.active_round import ActiveRound
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.missed_rounds import Absences


class Attendance:
    """Notes the attendance of training rounds.

    Args:
        absences: The absent devices.
        fleet: The known devices, whose count follows the absences.

    Attributes:
        newly_absent: Whether the last round made a device absent for the first time, while absent devices are a minority.
    """

    def __init__(self, absences: Absences, fleet: Fleet) -> None:
        self.newly_absent = False
        self._absences = absences
        self._fleet = fleet
        fleet.count.absent, fleet.count.unsteady = absences.missed, absences.unsteady

    def end_round(self, current: ActiveRound, carried: Collection[str], *, failed: bool) -> Mapping[str, int]:
        """Note the devices that missed a round; return the missed rounds in a row by absent device.

        A failed round waited in vain for the carried work of earlier rounds too, and the next one cannot count on a device
        that failed, or that is away. A device that stays away is absent once: it is invited as soon as it is back.

        Args:
            carried: Devices with carried work that have not offered their updates.
        """
        absences, fleet = self._absences, self._fleet
        known, before = set(absences.missed), set(absences.ever)
        away = fleet.count.missing
        lost = {*carried, *current.absentees.failed, *(away - known)} if failed else set[str]()
        absent = absences.note(
            current.round.number,
            {*current.absentees.missed, *lost},
            current.reports.keys(),
            current.round.left | fleet.left,
            () if failed else current.absentees.failed,
            away,
        )
        invited = current.round.participants
        mute = {device for device in current.absentees.unheard if fleet.is_online(device)}
        fleet.false_presence.round_over(mute, invited.keys() - mute)
        fleet.count.absent, fleet.count.unsteady = absent, absences.unsteady
        news = (absent.keys() - known | set(current.absentees.failed)) - before
        self.newly_absent = bool(news) and not fleet.count.standing.all_count
        return absent
