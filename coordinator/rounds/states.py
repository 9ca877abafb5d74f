"""The words for a round and its participants, and what each event makes of each state."""

from __future__ import annotations

from enum import StrEnum

from shared.reasons import JobPhase


class Phase(StrEnum):
    """Of the round."""

    SELECTING = "selecting"
    RECRUITING = "recruiting"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    CLOSED = "closed"
    FAILED = "failed"


class State(StrEnum):
    """Of a participant."""

    INVITED = "invited"
    ACCEPTED = "accepted"
    TRAINING = "training"
    UPLOADING = "uploading"
    REPORTED = "reported"
    DECLINED = "declined"
    FAILED = "failed"
    LOST = "lost"
    LATE = "late"


class Event(StrEnum):
    """What a device did, or what was noticed of it."""

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

# (state, event) -> state; a pair that is not here leaves the state as it is: a duplicate, or too late to matter.
TABLE: dict[tuple[State, Event], State] = {
    **{(state, Event.ACCEPT): _A for state in (_I, _L)},
    **{(state, Event.DECLINE): State.DECLINED for state in (_I, _A, _L)},
    # A message may overtake the one before it, so later signs of life imply the earlier ones.
    **{(state, Event.TRAIN): _T for state in (_I, _A, _L)},
    **{(state, Event.OFFER): _U for state in (_I, _A, _T, _L)},
    **{(state, Event.REPORT): State.REPORTED for state in AT_WORK},
    **{(state, Event.FAIL): State.FAILED for state in AT_WORK},
    **{(state, Event.VANISH): _L for state in (_I, _A, _T, _U)},
    **{(state, Event.RESTART): _I for state in AT_WORK},
}

# What the phase that a device tells of its job says of it.
EVENT_OF_JOB = {
    JobPhase.DOWNLOADING: Event.ACCEPT,
    JobPhase.TRAINING: Event.TRAIN,
    JobPhase.UPLOADING: Event.OFFER,
}
