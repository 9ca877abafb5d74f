"""The words for a round and its participants, and what each event makes of each state.

What is kept of a round while it is open, so that another process can go on with it after a crash.

The ledger is on the disk before anybody is invited, an update before its device hears `committed`. Whatever else the round
knew (who trains, what was half uploaded) comes back by asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.reason_codes import JobPhase


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


@dataclass(frozen=True)
class RoundJournal:
    """Of the round `round`: who was invited, to train on the model `base` (its digest).

    Updates of `target` devices are wanted. `accepted` are devices that are known to have agreed. `spent_s` is what had passed
    of the deadline. With `closing` the aggregation has begun: nothing that comes later counts. Updates were asked for in
    `encoding`, and in another of the devices in `negotiated`; "": nobody knows. The round is not meant for those of the
    invited that are `absent`. `offenders` are those whose updates were refused for an offence, each with it.
    """

    round: int
    target: int
    invited: tuple[str, ...]
    base: str
    accepted: frozenset[str] = frozenset()
    spent_s: float = 0.0
    closing: bool = False
    encoding: str = ""
    negotiated: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    offenders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CommittedUpdate:
    """A committed update: the digest that its device knows it by, its bytes as they travelled, what it reports."""

    digest: str
    size_bytes: int
    report: UpdateReport


@dataclass(frozen=True)
class RoundStart:
    """How a round opens: a new one with a ledger that names no base yet, or one to go on with and what was committed to it."""

    ledger: RoundJournal
    updates: Mapping[str, CommittedUpdate] = field(default_factory=dict)
