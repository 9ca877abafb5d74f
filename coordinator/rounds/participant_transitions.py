"""The transitions of a participant of a round, as a table, and the phases of the round."""

from __future__ import annotations

from enum import StrEnum

from fedpatch.shared.wire.reason_codes import JobPhase


class Phase(StrEnum):
    """The phases of a round."""

    SELECTING = "selecting"
    RECRUITING = "recruiting"
    COLLECTING = "collecting"
    UNMASKING = "unmasking"
    AGGREGATING = "aggregating"
    CLOSED = "closed"
    FAILED = "failed"


class State(StrEnum):
    """The states of a participant."""

    INVITED = "invited"
    ACCEPTED = "accepted"
    TRAINING = "training"
    UPLOADING = "uploading"
    REPORTED = "reported"
    DECLINED = "declined"
    FAILED = "failed"
    LOST = "lost"
    LATE = "late"


class ParticipantEvent(StrEnum):
    """The events of a participant."""

    ACCEPT = "accept"
    DECLINE = "decline"
    TRAIN = "train"
    OFFER = "offer"
    REPORT = "report"
    FAIL = "fail"
    VANISH = "vanish"
    RESTART = "restart"


_I, _A, _T, _U, _L = State.INVITED, State.ACCEPTED, State.TRAINING, State.UPLOADING, State.LOST
AT_WORK = (_I, _A, _T, _U, _L)

# (state, event) -> state. A missing pair, of a duplicate or late event, leaves the state as it is.
TABLE: dict[tuple[State, ParticipantEvent], State] = {
    **{(state, ParticipantEvent.ACCEPT): _A for state in (_I, _L)},
    **{(state, ParticipantEvent.DECLINE): State.DECLINED for state in (_I, _A, _L)},
    # A message may arrive before an earlier message, so an event implies the earlier events.
    **{(state, ParticipantEvent.TRAIN): _T for state in (_I, _A, _L)},
    **{(state, ParticipantEvent.OFFER): _U for state in (_I, _A, _T, _L)},
    **{(state, ParticipantEvent.REPORT): State.REPORTED for state in AT_WORK},
    **{(state, ParticipantEvent.FAIL): State.FAILED for state in AT_WORK},
    **{(state, ParticipantEvent.VANISH): _L for state in (_I, _A, _T, _U)},
    **{(state, ParticipantEvent.RESTART): _I for state in AT_WORK},
}

# The event for each phase of a job that a device reports.
EVENT_OF_JOB = {
    JobPhase.DOWNLOADING: ParticipantEvent.ACCEPT,
    JobPhase.TRAINING: ParticipantEvent.TRAIN,
    JobPhase.UPLOADING: ParticipantEvent.OFFER,
}
