"""One round as a state machine without IO: phases, participants, the transition table, deadlines.

    SELECTING -> RECRUITING -> COLLECTING -> AGGREGATING -> CLOSED
                      |             |
                      +-> FAILED <--+        (the model stays as it was)

What devices do is never illegal here: in each state each event has its place in `TABLE`, or changes nothing. What the
program itself does out of order raises IllegalTransition and changes nothing. However events come, a round that collects
is over at `deadline_s + grace_s` at the latest, and a device counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from fedpatch.coordinator.cohort.quorum import updates_needed, without
from fedpatch.coordinator.rounds.participant_transitions import AT_WORK, TABLE, Event, Phase, RoundJournal, State
from fedpatch.coordinator.rounds.run_records import PhaseSeconds
from fedpatch.shared.errors import IllegalTransition

# The longest pause after which an agent comes back to a broker that was away too (its reconnect_max_s).
RETURN_S = 60.0
# Why a device is left behind that neither accepted nor declined.
NO_ANSWER = "no answer"
_ROUNDING_S = 1e-6

_I, _U, _L = State.INVITED, State.UPLOADING, State.LOST
_HAD_MODEL = frozenset({State.TRAINING, _U, State.REPORTED})
_ACCEPTED = _HAD_MODEL | {State.ACCEPTED}


@dataclass(frozen=True)
class RoundPolicy:
    """When a round is over: both deadlines are seconds from its invitation.

    The round is meant for `target` devices (more may be invited); the fraction `quorum` of them must report, and no fewer
    than `min_cohort`, 1 or more (coordinator.cohort.quorum). After the quorum, stragglers get `grace_s`, though not past the
    deadline; at the deadline, devices that are uploading get it while they can still make the quorum. A device that vanished
    may be away for `rejoin_s`.
    """

    target: int
    min_cohort: int
    quorum: float
    recruit_deadline_s: float
    deadline_s: float
    grace_s: float
    rejoin_s: float


@dataclass
class Participant:
    """A device in this round and when it was first seen in each state."""

    state: State = State.INVITED
    reason: str = ""
    accepted: bool = False
    since: dict[State, float] = field(default_factory=dict)
    lost_at: float = 0.0


class Round:
    """Drive it with `begin`, `handle`, `tick` and `finish`; read `phase`, `participants`, `next_deadline`."""

    def __init__(self, number: int, policy: RoundPolicy, now: float) -> None:
        self.number, self.policy = number, policy
        self.phase = Phase.SELECTING
        self.participants: dict[str, Participant] = {}
        self.failure = ""
        self._in: dict[State, set[str]] = {state: set() for state in State}
        self._accepted = 0
        # Participants that do not count any more (coordinator.cohort.quorum).
        self.left: set[str] = set()
        # Participants for which the round is not meant (coordinator.rounds.missed_rounds).
        self._absent: frozenset[str] = frozenset()
        # Updates that make the quorum. They change only when devices are invited or leave, and are read at every event.
        self.needed = self._updates_needed()
        # Nobody who is lost is given up before: who is back since makes it too early, which costs one look.
        self._give_up_at = math.inf
        self._started_at = self._invited_at = self._asked_at = now
        self._quorum_at: float | None = None
        self._closing_at = self._closed_at = now

    def begin(self, invited: tuple[str, ...], now: float, absent: frozenset[str] = frozenset()) -> None:
        """The cohort is chosen and the invitations go out; the round is not meant for the `absent` of those `invited`."""
        self._invite(invited, absent, now, "begin")
        self._invited_at = self._asked_at = now
        self._advance(now)

    def take_up(self, ledger: RoundJournal, reported: Collection[str], now: float) -> None:
        """Goes on with a round that another coordinator had open: `reported` count, the others have to be asked again.

        Its deadline is what it was. But whoever lost the broker too needs RETURN_S to be back: for so long at least
        everybody has time to answer, and nobody who had accepted is missed.
        """
        self._invite(ledger.invited, ledger.absent, now, "take up")
        self._started_at = self._invited_at = now - ledger.spent_s
        self._asked_at = now + max(0.0, RETURN_S - self.policy.recruit_deadline_s)
        for device in self.participants.keys() & (ledger.accepted | set(reported)):
            participant = self.participants[device]
            participant.accepted = True
            participant.lost_at = now + max(0.0, RETURN_S - self.policy.rejoin_s)
            self._accepted += 1
            self._move(device, State.REPORTED if device in reported else State.LOST, "")
            participant.since[participant.state] = now
        for device in self.participants.keys() & ledger.offenders.keys():
            self._move(device, State.FAILED, ledger.offenders[device])
            self._leave(device)
        self._give_up_at = -math.inf
        if ledger.closing:
            self._quorum_at = self._closing_at = now
            self._leave_behind()
            self.phase = Phase.AGGREGATING
        self._advance(now)

    def handle(self, device: str, event: Event, now: float, reason: str = "", *, leaves: bool = False) -> bool:
        """Takes an event of a device.

        Args:
            device: The device; one that is no participant changes nothing.
            event: What it did, or what was noticed of it.
            now: Seconds on the round's clock.
            reason: Why, as the record is to say.
            leaves: Whether the device leaves the count of those that the round is meant for, if the event moves it.

        Returns:
            True when the event moved the device to another state. Unknown devices and closed rounds: False.
        """
        participant = self.participants.get(device)
        if participant is None or self.phase not in (Phase.RECRUITING, Phase.COLLECTING):
            return False
        target = TABLE.get((participant.state, event), participant.state)
        if target is participant.state:
            return False
        self._move(device, target, reason)
        self._accepted += target in _ACCEPTED and not participant.accepted
        participant.accepted |= target in _ACCEPTED
        participant.since.setdefault(target, now)
        if leaves:
            self._leave(device)
        if target is State.LOST:
            participant.lost_at = now
            self._give_up_at = min(self._give_up_at, now + self.policy.rejoin_s)
        self._advance(now)
        return True

    def tick(self, now: float) -> None:
        """Lets time pass."""
        if self.phase in (Phase.RECRUITING, Phase.COLLECTING):
            self._advance(now)

    def finish(self, now: float) -> None:
        """The aggregate is made."""
        self._require(Phase.AGGREGATING, "finish")
        self.phase = Phase.CLOSED
        self._closed_at = now

    def abandon(self, now: float, failure: str) -> None:
        """Ends the round early; nothing of it enters the model."""
        if self.over:
            raise IllegalTransition(f"round {self.number} is {self.phase}; it cannot be abandoned")
        self._fail(failure, now)

    @property
    def over(self) -> bool:
        """Nothing more can change."""
        return self.phase in (Phase.CLOSED, Phase.FAILED)

    def _leave(self, device: str) -> None:
        """Take `device` out of the count."""
        self.left.add(device)
        self.needed = self._updates_needed()

    def _updates_needed(self) -> int:
        target, quorum = self.policy.target, self.policy.quorum
        # Devices that count and were invited beyond the target stand in for those that left the count.
        spares = max(0, len(self.participants.keys() - self._absent) - target)
        left = len(self.left - self._absent) - spares
        return updates_needed(without(target, left, quorum), quorum, self.policy.min_cohort)

    def awaits(self, device: str) -> bool:
        """Whether it has still to report, and may."""
        participant = self.participants.get(device)
        return participant is not None and participant.state in AT_WORK

    def devices(self, *states: State) -> list[str]:
        """Devices in one of `states`, sorted."""
        return sorted(device for state in states for device in self._in[state])

    def count(self, *states: State) -> int:
        """How many devices are in one of `states`."""
        return sum(len(self._in[state]) for state in states)

    def accepted(self) -> list[str]:
        """Devices that accepted, whatever became of them."""
        return sorted(d for d, p in self.participants.items() if p.accepted)

    def reasons(self, state: State) -> dict[str, int]:
        """How often each reason led to `state`."""
        return dict(Counter(p.reason for p in self.participants.values() if p.state is state))

    def had_model(self) -> list[str]:
        """Devices that are known to have come to the round's model."""
        return [d for d, p in self.participants.items() if not p.since.keys().isdisjoint(_HAD_MODEL)]

    def elapsed_s(self, now: float) -> float:
        """Seconds since the round began."""
        return now - self._started_at

    @property
    def quorum_s(self) -> float | None:
        """Seconds from the round's beginning to its quorum, None while it is missed."""
        return None if self._quorum_at is None else self._quorum_at - self._started_at

    @property
    def closing_at(self) -> float:
        """The moment at which collecting ended, of a round that no longer collects."""
        return self._closing_at

    @property
    def used_up(self) -> bool:
        """Whether it collected until its deadline."""
        return self._closing_at - self._invited_at >= self.policy.deadline_s - _ROUNDING_S

    def report_seconds(self) -> list[float]:
        """Seconds from the invitation to each report, in order."""
        at = [p.since[State.REPORTED] for p in self.participants.values() if p.state is State.REPORTED]
        return sorted(moment - self._invited_at for moment in at)

    def spent_s(self, now: float) -> float:
        """Seconds of the deadline that have passed."""
        return now - self._invited_at

    def remaining_s(self, now: float) -> float:
        """Seconds to the deadline, as a work request states them."""
        return max(0.0, self._invited_at + self.policy.deadline_s - now)

    def next_deadline(self) -> float | None:
        """The next moment at which `tick` may change something; None when none is near."""
        if self.phase not in (Phase.RECRUITING, Phase.COLLECTING):
            return None
        end = self._recruiting_ends_at() if self.phase is Phase.RECRUITING else self._collecting_ends_at()
        return min(end, self._give_up_at) if self._in[_L] else end

    def _recruiting_ends_at(self) -> float:
        return min(self._asked_at + self.policy.recruit_deadline_s, self._invited_at + self.policy.deadline_s)

    def _collecting_ends_at(self) -> float:
        """At the latest, as things stand now."""
        deadline = self._invited_at + self.policy.deadline_s
        if self._quorum_at is not None:
            return min(self._quorum_at + self.policy.grace_s, deadline)
        waits = self.count(_U) > 0 and self.count(State.REPORTED, _U) >= self.needed
        return deadline + self.policy.grace_s if waits else deadline

    def _require(self, phase: Phase, what: str) -> None:
        if self.phase is not phase:
            raise IllegalTransition(f"round {self.number}: {what} in {self.phase}, needs {phase}")

    def _invite(self, devices: tuple[str, ...], absent: frozenset[str], now: float, what: str) -> None:
        self._require(Phase.SELECTING, what)
        self.participants = {device: Participant(since={State.INVITED: now}) for device in devices}
        self._absent = absent
        self.needed = self._updates_needed()
        self._in[State.INVITED].update(devices)
        self.phase = Phase.RECRUITING

    def _move(self, device: str, state: State, reason: str) -> None:
        """Nothing else changes a state: who is in which is counted here, so that an event costs the same in any fleet."""
        participant = self.participants[device]
        self._in[participant.state].discard(device)
        self._in[state].add(device)
        participant.state, participant.reason = state, reason

    def _advance(self, now: float) -> None:
        """Compares what is with what should be; called after every event."""
        if self._in[_L] and now >= self._give_up_at:
            self._give_up(now)
        if self.phase is Phase.RECRUITING:
            self._advance_recruiting(now)
        if self.phase is Phase.COLLECTING:
            self._advance_collecting(now)

    def _give_up(self, now: float) -> None:
        """Those that were away for too long. To look at all who are lost at every event would cost a large fleet dearly."""
        until = {device: self.participants[device].lost_at + self.policy.rejoin_s for device in self._in[_L]}
        for device in [device for device, end in until.items() if now >= end]:
            self._move(device, State.FAILED, "lost")
            del until[device]
        self._give_up_at = min(until.values(), default=math.inf)

    def _advance_recruiting(self, now: float) -> None:
        undecided = (d for state in (_I, _L) for d in self._in[state] if not self.participants[d].accepted)
        if now < self._recruiting_ends_at() and any(True for _ in undecided):
            return
        if self._accepted - sum(self.participants[device].accepted for device in self.left) < self.needed:
            self._fail("too_few_accepted", now)
            return
        for device in list(undecided):
            self._move(device, State.LATE, NO_ANSWER)
        self.phase = Phase.COLLECTING

    def _advance_collecting(self, now: float) -> None:
        reported, active = self.count(State.REPORTED), self.count(*AT_WORK)
        if reported >= self.needed and self._quorum_at is None:
            self._quorum_at = now
        due = now >= self._collecting_ends_at()
        if self._quorum_at is None and (due or reported + active < self.needed):
            self._fail("quorum_missed", now)
        elif self._quorum_at is not None and (due or active == 0):
            self._leave_behind()
            self.phase = Phase.AGGREGATING
            self._closing_at = now

    def _fail(self, failure: str, now: float) -> None:
        self._leave_behind()
        if self.phase is not Phase.AGGREGATING:
            self._closing_at = now
        self.phase = Phase.FAILED
        self.failure = failure
        self._closed_at = now

    def _leave_behind(self) -> None:
        for device in self.devices(*AT_WORK):
            self._move(device, State.LATE, self.participants[device].reason or "deadline")

    def phase_seconds(self) -> PhaseSeconds:
        """The round's time, cut along the path of the device that reported last (its end closed the round).

        The parts add up to the whole. Without a report everything after the invitation counts as recruiting.
        """
        select = self._invited_at - self._started_at
        aggregate = self._closed_at - self._closing_at
        reported = [p for p in self.participants.values() if p.state is State.REPORTED]
        if not reported:
            return PhaseSeconds(select, self._closing_at - self._invited_at, 0.0, 0.0, 0.0, aggregate)
        last = max(reported, key=lambda p: p.since[State.REPORTED]).since
        # A message that was lost or overtaken leaves a gap: that part then has no length.
        seen = (last.get(state, -math.inf) for state in (State.ACCEPTED, State.TRAINING, _U))
        marks = accumulate((self._invited_at, *seen, self._closing_at), max)
        recruit, download, train, upload = (b - a for a, b in pairwise(marks))
        return PhaseSeconds(select, recruit, download, train, upload, aggregate)
