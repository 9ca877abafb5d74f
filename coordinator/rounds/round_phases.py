"""One round as a state machine: phases, participants, deadlines, and signs of life.

    SELECTING -> RECRUITING -> COLLECTING -> AGGREGATING -> CLOSED
                      |             |
                      +-> FAILED <--+        (the model stays as it was)

A masked round is UNMASKING between COLLECTING and AGGREGATING: the groups of its devices open or are lost
(coordinator.masking), and only reports in open groups count. It fails with `groups_lost` if these are fewer than the quorum.

Each event of a device is legal: it changes the device's state by `TABLE`, or changes nothing. A call in a wrong phase raises
IllegalTransition and changes nothing. For any order of the events, collecting ends at `deadline_s + grace_s` at the latest, and
a device counts once. Unmasking ends `unmask_s` later at the latest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from fedpatch.coordinator.cohort.quorum import updates_needed, without
from fedpatch.coordinator.rounds.participant_transitions import AT_WORK, TABLE, ParticipantEvent, Phase, State
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record import PhaseSeconds
from fedpatch.shared.errors import IllegalTransition

# The longest pause of an agent before it connects again to a broker that was away (its reconnect_max_s).
RETURN_S = 60.0
# The reason of a device that neither accepted nor declined.
NO_ANSWER = "no answer"
# The reason of a device whose masked group is lost.
GROUP_LOST = "group_lost"
# The reason of a device whose work is carried into the next round (coordinator.buffered).
CARRIED = "carried"
# Reasons of failed devices that may return with their work.
_MAY_RETURN = frozenset({"lost", "silent"})
_ROUNDING_S = 1e-6
# A starting device loads torch, its task and its data: a minute on a Raspberry Pi, more on a busy machine.
STARTING_S = 300.0
_I, _U, _L = State.INVITED, State.UPLOADING, State.LOST
_HAD_MODEL = frozenset({State.TRAINING, _U, State.REPORTED})
_ACCEPTED = _HAD_MODEL | {State.ACCEPTED}


@dataclass(frozen=True)
class RoundPolicy:
    """The conditions under which a round ends.

    Attributes:
        target: Devices that the round is meant for; more may be invited.
        min_cohort: Devices that must report in any case, 1 or more.
        quorum: Share of `target` that must report, above 0 and at most 1 (coordinator.cohort.quorum).
        recruit_deadline_s: Time to answer the invitation, in seconds from it.
        deadline_s: Time to report, in seconds from the invitation.
        grace_s: Time after the quorum for devices that are still working, not past the deadline. At the deadline, uploading
            devices also get this time if the quorum depends on them.
        rejoin_s: Time that a device may be disconnected.
        unmask_s: Time for the groups of a masked round to open after collecting; None for a round without masks.
        quorum_updates: Updates that make the quorum, in place of the share `quorum`; None: the share does.
        carries: Whether work that is unfinished at the end is carried into the next round.
    """

    target: int
    min_cohort: int
    quorum: float
    recruit_deadline_s: float
    deadline_s: float
    grace_s: float
    rejoin_s: float
    unmask_s: float | None = None
    quorum_updates: int | None = None
    carries: bool = False


@dataclass
class Participant:
    """A device in the round.

    Attributes:
        state: Its state.
        reason: The reason of the last change of state, for the record.
        accepted: Whether it has accepted the invitation at some time.
        since: The time at which it first was in each state, in seconds.
        lost_at: The time at which it lost its connection.
    """

    state: State = State.INVITED
    reason: str = ""
    accepted: bool = False
    since: dict[State, float] = field(default_factory=dict)
    lost_at: float = 0.0


class Round:
    """One round from its selection to its end.

    The owner calls `begin` (or `resume` after a restart), `handle` for each event of a device, `tick` when time has passed,
    and `finish` after the aggregation. All times are seconds of the run's clock.

    Args:
        number: Number of the round, from 1.
        policy: The conditions under which it ends.
        now: The time at which it begins.

    Example:
        >>> policy = RoundPolicy(2, 1, 1.0, recruit_deadline_s=10, deadline_s=60, grace_s=5, rejoin_s=10)
        >>> round = Round(1, policy, now=0.0)
        >>> round.begin(("pi-1", "pi-2"), now=0.0)
        >>> round.handle("pi-1", ParticipantEvent.ACCEPT, now=1.0)
        True
        >>> round.next_deadline()
        10.0
    """

    def __init__(self, number: int, policy: RoundPolicy, now: float) -> None:
        self.number, self.policy = number, policy
        self.phase = Phase.SELECTING
        self.participants: dict[str, Participant] = {}
        self.failure = ""
        # Whether groups of a masked round still exchange shares: their devices cannot report yet, so no grace period runs.
        self.sharing = False
        # The number of devices that work for earlier rounds and have not offered their updates yet.
        self.expected = 0
        self._in: dict[State, set[str]] = {state: set() for state in State}
        self._accepted = 0
        # Participants that do not count any more (coordinator.cohort.quorum).
        self.left: set[str] = set()
        # Participants that `target` does not count (coordinator.rounds.missed_rounds).
        self._absent: frozenset[str] = frozenset()
        # Updates that make the quorum: computed when devices are invited or leave, read at every event.
        self.needed = self._updates_needed()
        # The earliest time at which a lost device fails. If that device is back, the check then finds nothing.
        self._give_up_at = math.inf
        self._started_at = self._invited_at = self._asked_at = now
        self._quorum_at: float | None = None
        self._closing_at = self._closed_at = now

    def begin(self, invited: tuple[str, ...], now: float, absent: frozenset[str] = frozenset()) -> None:
        """Begin to recruit.

        Args:
            invited: The selected devices.
            now: The time, in seconds.
            absent: Invited devices that the target does not count.
        """
        self._invite(invited, absent, now, "begin")
        self._invited_at = self._asked_at = now
        self._advance(now)

    def resume(self, journal: RoundJournal, reported: Collection[str], now: float) -> None:
        """Continue a round of an earlier process. Devices that have not reported are invited again.

        The deadline stays. Devices that also lost the broker need up to RETURN_S to connect again. They have at least this time
        to answer, and a device that had accepted does not fail as lost earlier.

        Args:
            reported: Devices whose updates are committed.
            now: The time, in seconds.
        """
        self._invite(journal.invited, journal.absent, now, "resume")
        self._started_at = self._invited_at = now - journal.spent_s
        self._asked_at = now + max(0.0, RETURN_S - self.policy.recruit_deadline_s)
        for device in self.participants.keys() & (journal.accepted | set(reported)):
            participant = self.participants[device]
            participant.accepted = True
            participant.lost_at = now + max(0.0, RETURN_S - self.policy.rejoin_s)
            self._accepted += 1
            self._move(device, State.REPORTED if device in reported else State.LOST, "")
            participant.since[participant.state] = now
        gone = {**journal.departed, **{device: (State.FAILED, why) for device, why in journal.offenders.items()}}
        for device in self.participants.keys() & gone.keys():
            self._move(device, *gone[device])
            self._leave(device)
        self._give_up_at = -math.inf
        if journal.grouped:
            for device in self.devices(_I):
                self._move(device, State.LATE, NO_ANSWER)
            self.phase = Phase.COLLECTING
        if journal.closing or journal.unmasking:
            self._quorum_at = self._closing_at = now
            self._leave_behind()
            self.phase = Phase.UNMASKING if self.policy.unmask_s is not None else Phase.AGGREGATING
            self._asked_at = now + max(0.0, RETURN_S - (self.policy.unmask_s or 0.0))
        self._advance(now)

    def admit(self, device: str, now: float, *, reported: bool = False) -> None:
        """Take in a device with the update of an earlier round.

        Args:
            device: The device, which is no participant.
            now: The time, in seconds.
            reported: Whether the update is committed already.
        """
        state = State.REPORTED if reported else State.TRAINING
        self.participants[device] = Participant(state, accepted=True, since={state: now})
        self._in[state].add(device)
        self._accepted += 1

    def take_back(self, device: str) -> None:
        """Wait again for a device that was lost or silent, and is back with its work; only in rounds that carry work."""
        participant = self.participants.get(device)
        if participant is None or not self.policy.carries or participant.state is not State.FAILED:
            return
        if participant.reason in _MAY_RETURN and device not in self.left:
            self._move(device, State.TRAINING, "")

    def carried(self) -> list[str]:
        """Return the devices whose work the next round may take, at the end of this one, sorted."""
        if not self.policy.carries:
            return []
        late = [device for device in self.devices(State.LATE) if self.participants[device].reason == CARRIED]
        failed = [device for device in self.devices(State.FAILED) if device not in self.left]
        gone = [device for device in failed if self.participants[device].reason in _MAY_RETURN]
        return sorted(late + [device for device in gone if self.participants[device].accepted])

    def handle(
        self, device: str, event: ParticipantEvent, now: float, reason: str = "", *, leaves: bool = False
    ) -> bool:
        """Handle an event of a device.

        Args:
            device: The device. An event of a device that is no participant changes nothing.
            now: The time, in seconds.
            reason: The reason, for the record.
            leaves: Whether the device leaves the count of the round if the event changes its state.

        Returns:
            Whether the event changed the state of the device. False in a round that is over.
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

    def recruiting_is_over(self, now: float) -> bool:
        """Return whether the time to answer is over at `now`."""
        return self.phase is Phase.RECRUITING and now >= self._recruiting_ends_at()

    def ask_until(self, moment: float) -> None:
        """Extend the time to answer to `moment`, not past the deadline of the round."""
        self._asked_at = max(self._asked_at, moment - self.policy.recruit_deadline_s)

    def tick(self, now: float) -> None:
        """Check the deadlines."""
        if self.phase in (Phase.RECRUITING, Phase.COLLECTING):
            self._advance(now)

    def finish_unmasking(self, lost: Collection[str], now: float) -> None:
        """End unmasking: the reports in lost groups do not count, and the round fails if the others are fewer than the quorum.

        Args:
            lost: The devices of lost groups.
            now: The time, in seconds.

        Raises:
            IllegalTransition: The round is in another phase.
        """
        self._require(Phase.UNMASKING, "finish_unmasking")
        for device in self._in[State.REPORTED].intersection(lost):
            self._move(device, State.FAILED, GROUP_LOST)
        if self.count(State.REPORTED) < self.needed:
            self._fail("groups_lost", now)
        else:
            self.phase = Phase.AGGREGATING

    def finish(self, now: float) -> None:
        """Close the round after its aggregation; raise IllegalTransition in another phase."""
        self._require(Phase.AGGREGATING, "finish")
        self.phase = Phase.CLOSED
        self._closed_at = now

    def abandon(self, now: float, failure: str) -> None:
        """End the round as failed; none of its updates is aggregated. Raise IllegalTransition if it is over."""
        if self.over:
            raise IllegalTransition(f"round {self.number} is {self.phase}; it cannot be abandoned")
        self._fail(failure, now)

    @property
    def over(self) -> bool:
        """True if the round has ended."""
        return self.phase in (Phase.CLOSED, Phase.FAILED)

    def _leave(self, device: str) -> None:
        """Take `device` out of the count."""
        self.left.add(device)
        self.needed = self._updates_needed()

    def _updates_needed(self) -> int:
        target, quorum = self.policy.target, self.policy.quorum
        if self.policy.quorum_updates is not None:
            return max(self.policy.min_cohort, self.policy.quorum_updates)
        # Devices that were invited beyond the target replace those that left the count.
        spares = max(0, len(self.participants.keys() - self._absent) - target)
        left = len(self.left - self._absent) - spares
        return updates_needed(without(target, left, quorum), quorum, self.policy.min_cohort)

    def awaits(self, device: str) -> bool:
        """Return whether the device works for the round, or still may."""
        participant = self.participants.get(device)
        return participant is not None and participant.state in AT_WORK

    def devices(self, *states: State) -> list[str]:
        """Return the devices in one of `states`, sorted."""
        return sorted(device for state in states for device in self._in[state])

    def count(self, *states: State) -> int:
        """Return the number of devices in one of `states`."""
        return sum(map(len, map(self._in.__getitem__, states)))

    def accepted(self) -> list[str]:
        """Return the devices that accepted the invitation, in any state now."""
        return sorted(d for d, p in self.participants.items() if p.accepted)

    def reasons(self, state: State) -> dict[str, int]:
        """Return the number of devices in `state` by reason."""
        return dict(Counter(p.reason for p in self.participants.values() if p.state is state))

    def had_model(self) -> list[str]:
        """Return the devices that have downloaded the round's model, as far as is known."""
        return [d for d, p in self.participants.items() if not p.since.keys().isdisjoint(_HAD_MODEL)]

    def elapsed_s(self, now: float) -> float:
        """Return the seconds since the round began."""
        return now - self._started_at

    @property
    def quorum_s(self) -> float | None:
        """Seconds from the round's beginning to its quorum; None without a quorum."""
        return None if self._quorum_at is None else self._quorum_at - self._started_at

    @property
    def closing_at(self) -> float:
        """The time at which collecting ended, in seconds."""
        return self._closing_at

    @property
    def used_up(self) -> bool:
        """True if the round collected until its deadline."""
        return self._closing_at - self._invited_at >= self.policy.deadline_s - _ROUNDING_S

    def report_seconds(self) -> list[float]:
        """Return the seconds from the invitation to each report, sorted."""
        at = [p.since[State.REPORTED] for p in self.participants.values() if p.state is State.REPORTED]
        return sorted(moment - self._invited_at for moment in at)

    def spent_s(self, now: float) -> float:
        """Return the seconds since the invitation."""
        return now - self._invited_at

    def remaining_s(self, now: float) -> float:
        """Return the seconds to the deadline, at least 0."""
        return max(0.0, self._invited_at + self.policy.deadline_s - now)

    @property
    def unmasking_ends_at(self) -> float:
        """The time at which unmasking ends, in seconds; a resumed round gives devices RETURN_S to connect again."""
        return max(self._closing_at, self._asked_at) + (self.policy.unmask_s or 0.0)

    def next_deadline(self) -> float | None:
        """Return the next time at which `tick` may have an effect; None if there is none."""
        if self.phase is Phase.UNMASKING:
            return self.unmasking_ends_at
        if self.phase not in (Phase.RECRUITING, Phase.COLLECTING):
            return None
        end = self._recruiting_ends_at() if self.phase is Phase.RECRUITING else self._collecting_ends_at()
        return min(end, self._give_up_at) if self._in[_L] else end

    def _recruiting_ends_at(self) -> float:
        return min(self._asked_at + self.policy.recruit_deadline_s, self._invited_at + self.policy.deadline_s)

    def _collecting_ends_at(self) -> float:
        """Return the latest time at which collecting ends, by the present states."""
        deadline = self._invited_at + self.policy.deadline_s
        if self._quorum_at is not None:
            return min(self._quorum_at + self.policy.grace_s, deadline)
        waits = self._in[_U] and self.count(State.REPORTED, _U) >= self.needed
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
        """Change a state. No other code changes states, so the sets of devices by state are right and an event costs O(1)."""
        participant = self.participants[device]
        self._in[participant.state].discard(device)
        self._in[state].add(device)
        participant.state, participant.reason = state, reason

    def _advance(self, now: float) -> None:
        """Move on to the next phase if its condition is met; called after every event."""
        if self._in[_L] and now >= self._give_up_at:
            self._give_up(now)
        if self.phase is Phase.RECRUITING:
            self._advance_recruiting(now)
        if self.phase is Phase.COLLECTING:
            self._advance_collecting(now)

    def _give_up(self, now: float) -> None:
        """Fail the devices that were lost for too long. Called at `_give_up_at` only, since it looks at all lost devices."""
        until = {device: self.participants[device].lost_at + self.policy.rejoin_s for device in self._in[_L]}
        for device in [device for device, end in until.items() if now >= end]:
            self._move(device, State.FAILED, "lost")
            del until[device]
        self._give_up_at = min(until.values(), default=math.inf)

    def _advance_recruiting(self, now: float) -> None:
        undecided = (d for state in (_I, _L) for d in self._in[state] if not self.participants[d].accepted)
        if now < self._recruiting_ends_at() and any(True for _ in undecided):
            return
        accepted = self._accepted - sum(self.participants[device].accepted for device in self.left)
        # Also in a round that fails: only a device with this reason becomes absent, and the next round does not count on it.
        for device in list(undecided):
            self._move(device, State.LATE, NO_ANSWER)
        if accepted + self.expected < self.needed:
            self._fail("too_few_accepted", now)
            return
        self.phase = Phase.COLLECTING

    def _advance_collecting(self, now: float) -> None:
        reported, active = self.count(State.REPORTED), self.count(*AT_WORK) + self.expected
        if reported >= self.needed and self._quorum_at is None:
            at_end = now >= self._collecting_ends_at()
            self._quorum_at = now if at_end or not self.sharing else None
        due = now >= self._collecting_ends_at()
        if self._quorum_at is None and (due or reported + active < self.needed):
            self._fail("quorum_missed", now)
        elif self._quorum_at is not None and (due or active == 0):
            self._leave_behind()
            self.phase = Phase.AGGREGATING if self.policy.unmask_s is None else Phase.UNMASKING
            self._closing_at = now

    def _fail(self, failure: str, now: float) -> None:
        self._leave_behind()
        if self.phase not in (Phase.UNMASKING, Phase.AGGREGATING):
            self._closing_at = now
        self.phase = Phase.FAILED
        self.failure = failure
        self._closed_at = now

    def _leave_behind(self) -> None:
        for device in self.devices(*AT_WORK):
            participant = self.participants[device]
            # A device that had accepted and is invited again has restarted, and has lost its work.
            works = self.policy.carries and participant.accepted and participant.state is not State.INVITED
            self._move(device, State.LATE, CARRIED if works else participant.reason or "deadline")

    def phase_seconds(self) -> PhaseSeconds:
        """Return the round's time by phase, along the path of the device that reported last.

        The phases add up to the time of the round. Without a report the time after the invitation counts as recruiting.
        """
        select = self._invited_at - self._started_at
        aggregate = self._closed_at - self._closing_at
        reported = [p for p in self.participants.values() if p.state is State.REPORTED]
        if not reported:
            return PhaseSeconds(select, self._closing_at - self._invited_at, 0.0, 0.0, 0.0, aggregate)
        last = max(reported, key=lambda p: p.since[State.REPORTED]).since
        # A phase whose message was lost, or arrived after the next one, has the length 0.
        seen = (last.get(state, -math.inf) for state in (State.ACCEPTED, State.TRAINING, _U))
        marks = accumulate((self._invited_at, *seen, self._closing_at), max)
        recruit, download, train, upload = (b - a for a, b in pairwise(marks))
        return PhaseSeconds(select, recruit, download, train, upload, aggregate)
