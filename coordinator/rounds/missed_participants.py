"""The participants that missed a round, at the end of collecting (coordinator.rounds.missed_rounds has the rule)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from fedpatch.coordinator.rounds.masked_round import NO_GROUP, NO_KEYS, NO_SHARES, OTHER_KEYS, MaskedRound
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_phases import CARRIED, GROUP_LOST, NO_ANSWER, Participant, Round
from fedpatch.coordinator.rounds.unresponsive_devices import SILENT, UnresponsiveDevices
from fedpatch.coordinator.rounds.upload_scheduler import UploadScheduler
from fedpatch.shared.wire.reason_codes import FailReason

# Reasons of failed participants that missed the round, and of those that failed through no fault of their own.
_MISSED = frozenset({"lost", SILENT, FailReason.DEADLINE, NO_KEYS, NO_SHARES})
_BLAMELESS = frozenset({GROUP_LOST, NO_GROUP, OTHER_KEYS, FailReason.MASKING, FailReason.DOWNLOAD, "stale"})


@dataclass(frozen=True)
class MissedParticipants:
    """The participants without an update in the round that are to blame for it.

    Attributes:
        missed: Those that missed the round.
        unheard: Those of them that did not answer, from the beginning or any more.
        failed: Those that failed for a reason of their own.
    """

    missed: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def with_silent(self, devices: Collection[str]) -> MissedParticipants:
        """Return the same with devices that fell silent later, while the groups of a masked round opened."""
        silent = tuple(sorted(set(devices).difference(self.missed)))
        return replace(self, missed=self.missed + silent, unheard=self.unheard + silent)


def missed_participants(
    round: Round, masked: MaskedRound | None, uploads: UploadScheduler, unresponsive: UnresponsiveDevices
) -> MissedParticipants:
    """Return the participants that missed a round.

    Args:
        round: The round, at the end of collecting.
        masked: Its groups; None without masks.
        uploads: The upload slots: a device that waits for one misses nothing.
        unresponsive: The last signs of life of the devices.
    """
    known, end = round.participants, _EndOfCollecting(round, masked, uploads, unresponsive)
    missed = tuple(device for device, one in known.items() if end.has_missed(device, one))
    unheard = tuple(device for device in missed if end.is_unheard(device, known[device]))
    blamed = (device for device in round.devices(State.FAILED) if known[device].reason not in _BLAMELESS)
    failed = tuple(device for device in blamed if device not in round.left and device not in missed)
    return MissedParticipants(missed, unheard, failed)


@dataclass(frozen=True)
class _EndOfCollecting:
    round: Round
    masked: MaskedRound | None
    uploads: UploadScheduler
    unresponsive: UnresponsiveDevices

    def has_missed(self, device: str, one: Participant) -> bool:
        round, masked = self.round, self.masked
        if device in round.left or (masked is not None and device in masked.held_up):
            return False
        match one.state:
            case State.DECLINED:
                return True
            case State.FAILED:
                return one.reason in _MISSED or (masked is not None and device in masked.silent)
            case State.LATE if one.reason == CARRIED:
                # In a round without its quorum the device has had all the time there was; its update still counts later.
                return round.used_up and round.quorum_s is None
            case State.LATE:
                return one.reason in ("lost", NO_ANSWER) or round.used_up or self._is_mute_at_quorum(device, one)
        return False

    def is_unheard(self, device: str, one: Participant) -> bool:
        if one.reason in (NO_ANSWER, SILENT):
            return True
        late = one.state is State.LATE and one.reason != "lost"
        return late and self.round.quorum_s is not None and self._was_mute(device, one)

    def _is_mute_at_quorum(self, device: str, one: Participant) -> bool:
        if self.round.quorum_s is None or self.uploads.has_in_line(device):
            return False
        return self._was_mute(device, one)

    def _was_mute(self, device: str, one: Participant) -> bool:
        """Return whether a device did not answer the last request of a round that has its quorum."""
        return self.unresponsive.is_mute(device, self.round.closing_at, uploads=State.UPLOADING in one.since)
