"""A run as a state machine: one round after the other, until a termination criterion is met.

Events and the time go in (coordinator.rounds.run_events), effects come out (coordinator.rounds.run_effects). `run_effects`
runs the effects with a handler and gives their completion events to the engine. Tensors never enter the engine.

The server's lines of Algorithm 1 (Mills, Hu and Min 2021), with the method that implements each line:

     1  initialise the global model and optimiser     before the engine: coordinator.runtime.run_preparation
     2  while the termination criteria are not met    `_next_round`, `_stop_reason`
     3  select the clients of the round               `_select`
     4  for each client in parallel                   `_open_round`, ActiveRound.begin
     5  download the global model, optimiser values   PublishModel, `_on_model_published`
  6-14  patches, LocalUpdate                          on the device: device_agent.training.local_update
 15-18  upload what is not a patch                    ChunkReceived, StoreUpdate, `_on_update_stored`
 19-22  GlobalModelUpdate, GlobalOptimUpdate          AggregateUpdates, `_on_aggregated`
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.buffered.carried_work import CarriedDevices, CarriedWork
from fedpatch.coordinator.buffered.speed_classes import SpeedClasses
from fedpatch.coordinator.cohort.quorum import Standing, devices_meant, updates_needed
from fedpatch.coordinator.cohort.selection import Selection, draw
from fedpatch.coordinator.masking.run_groups import REGISTER, RunGroups
from fedpatch.coordinator.rounds.active_round import ActiveRound, new_scheduler
from fedpatch.coordinator.rounds.auto_deadline import evaluation_policy, policy_of
from fedpatch.coordinator.rounds.envelopes import KEEP_S, EnvelopeFactory
from fedpatch.coordinator.rounds.far_updates import far_rounds
from fedpatch.coordinator.rounds.known_devices import (
    CANNOT_MASK,
    CANNOT_SIGN,
    NO_PRIVACY,
    OLD_PLAN,
    QUARANTINED,
    REVOKED,
    Fleet,
)
from fedpatch.coordinator.rounds.missed_rounds import Absences
from fedpatch.coordinator.rounds.participant_transitions import (
    AT_WORK,
    CommittedUpdate,
    MaskingEntry,
    Phase,
    RoundJournal,
    RoundStart,
)
from fedpatch.coordinator.rounds.participant_transitions import Event as ParticipantEvent
from fedpatch.coordinator.rounds.round_phases import RETURN_S, STARTING_S
from fedpatch.coordinator.rounds.round_record import BufferedFigures, RoundRecord
from fedpatch.coordinator.rounds.run_effects import (
    Effect,
    EffectHandler,
    EndRun,
    PublishModel,
    RetractModel,
    SaveGroupSteps,
    SavePause,
    SaveRecord,
)
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    DevicesRevoked,
    Event,
    HoldsChanged,
    Interrupted,
    LinkChanged,
    ModelPublished,
    RunStarted,
    StopRequested,
    Suspended,
    TimePassed,
    UpdateRejected,
    UpdateStored,
)
from fedpatch.coordinator.rounds.run_spec import RunSpec, Stopped
from fedpatch.coordinator.rounds.work_requests import measures_independent
from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.wire.chunked_transfer import Chunk
from fedpatch.shared.wire.messages import (
    CARRY_FEATURE,
    EVALUATE_FEATURE,
    MASKED_FEATURE,
    MASKED_PRIVACY_FEATURE,
    PRIVACY_FEATURE,
    SHARED_ID_FEATURE,
    SIGNED_FEATURE,
    URL_FEATURE,
    Accept,
    Cancel,
    Decline,
    DeviceState,
    Envelope,
    Failed,
    Need,
    Offer,
    Progress,
    RetryAfter,
)
from fedpatch.shared.wire.plan_terms import CONTROL
from fedpatch.shared.wire.reason_codes import RefuseReason

# The shortest pause before a device repeats an offer of carried work that arrived between two rounds.
BETWEEN_ROUNDS_S = 1.0
_ROUNDING_S = 1e-3
# Pause after a failed round. It doubles with each further failed round, up to the waiting time for devices.
RETRY_S = 2.0
SETTLE_S = 5.0
"""Time without an arrival after which a first round begins without the devices in place of held ones."""


class Engine:
    """Runs the rounds of one run. `handle` takes an event and returns the effects to run, in order.

    Args:
        spec: The terms of the run.
        records: The records of earlier rounds of the run.
        earlier: Records of rounds before these, used only for their absent devices: the rounds of a relay's site, each with its
            own engine.
        unfinished: The round that was open at the end of the last epoch.
        resumable: Open rounds of other runs, by run (EnvelopeFactory).
        jitter: Randomness of pauses.
        holds: Devices that are quarantined or drained at the start, each with the kind of the hold.
        seen: Devices that earlier epochs have seen with the task; they count although they may be offline.
        last_run: Devices that the fleet's last run has seen with the task; the first round waits for those that are not held.
        carried: Work for rounds that are over, by device (coordinator.buffered).
        waiting: Committed updates of a failed round that wait for the next version, by device.
        rest_s: Seconds until the first round may begin, unless a round is unfinished.

    Attributes:
        carried: The devices with carried work that have not offered their updates.

    Example:
        >>> engine = Engine(spec, jitter=random.Random(1))  # doctest: +SKIP
        >>> engine.handle(RunStarted(), now=0.0)  # doctest: +SKIP
        []
    """

    def __init__(  # noqa: PLR0913 - one keyword per kind of state from an earlier process
        self,
        spec: RunSpec,
        *,
        records: Sequence[RoundRecord] = (),
        earlier: Sequence[RoundRecord] = (),
        unfinished: RoundStart | None = None,
        resumable: Mapping[str, int] | None = None,
        jitter: random.Random,
        holds: Mapping[str, str] | None = None,
        seen: Collection[str] = (),
        last_run: Collection[str] = (),
        carried: Mapping[str, CarriedWork] | None = None,
        waiting: Mapping[str, CommittedUpdate] | None = None,
        rest_s: float = 0.0,
        groups: RunGroups | None = None,
    ) -> None:
        self.spec = spec
        self._groups = groups or RunGroups(spec.seed)
        self.carried = CarriedDevices(carried)
        self._waiting: dict[str, CommittedUpdate] = dict(waiting or {})
        self._speeds = SpeedClasses()
        # The number of works that were too old for the model of the open round.
        self._expired = 0
        self._uploads = new_scheduler(spec, jitter)
        needs = {PRIVACY_FEATURE: NO_PRIVACY} if spec.privacy is not None else {}
        if spec.secure is not None:
            needs |= {MASKED_FEATURE: CANNOT_MASK} | ({SIGNED_FEATURE: CANNOT_SIGN} if spec.secure.strict else {})
        needs |= {term: OLD_PLAN.format(term) for term in spec.plan.terms}
        needs |= {CONTROL: OLD_PLAN.format("control variates")} if spec.plan.has_controls else {}
        both = spec.privacy is not None and spec.secure is not None
        needs |= {MASKED_PRIVACY_FEATURE: NO_PRIVACY} if both else {}
        self.fleet = Fleet(spec.task, spec.limits.max_devices, spec.encoding, needs, spec.limits.max_members)
        self.open: ActiveRound | None = None
        self.records = list(records)
        self._evaluations = sum(record.is_evaluation for record in self.records)
        # Whether the one evaluate round of a run without training is over.
        self._evaluated = False
        self.stopped: Stopped | None = None
        self._unfinished = unfinished
        self._resumed = bool(earlier or self.records) or unfinished is not None
        self._selected = False
        self._stops_after_round = False
        # Whether the aggregation of the open round was requested.
        self._aggregates = False
        self._envelopes = EnvelopeFactory(spec, resumable)
        self._jitter = jitter
        self._started_at = 0.0
        self._waits_since: float | None = None
        # The time at which the last device arrived.
        self._arrived_at = -math.inf
        self._wait_until: float | None = None
        self._pause_until: float | None = None
        self._rest_s = rest_s
        self._next_round_at = 0.0
        self._connected = True
        self._quorum_seconds: list[float] = []
        self._absences = Absences([*earlier, *self.records])
        self._far = next((record.far for record in reversed([*earlier, *self.records])), {})
        self.fleet.absent, self.fleet.unsteady = self._absences.missed, self._absences.unsteady
        # Failed rounds in a row, the number of them that count, and the time at which the last of these ended.
        self._failed = self._failures = 0
        self._failed_at = -math.inf
        # Whether the last round made a device absent for the first time, while absent devices are a minority.
        self._reveals_absent = False
        # Devices that have left the count in an earlier round: if such a device leaves again, no failure is excused.
        self._left_before: set[str] = set()
        offenders = [record.offenders for record in self.records]
        offenders += [unfinished.ledger.offenders] if unfinished is not None else []
        for device, offence in (one for known in offenders for one in known.items()):
            self.fleet.exclude_offender(device, offence)
        self.fleet.remember(seen)
        self.fleet.expect(last_run)
        self.fleet.hold(holds or {})
        for device in [device for device in self.carried.works if self.fleet.held(device) == QUARANTINED]:
            self.carried.drop(device)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event that happened at `now`, in seconds of the run's clock.

        Returns:
            The effects that follow, in the order in which they must run.

        Raises:
            IllegalTransition: A completion event without the effect that it completes.
        """
        if self.open is not None and isinstance(event, DeviceMessage | ChunkReceived | DevicePresence):
            self.open.note_arrival()
        match event:
            case DeviceMessage():
                return self._on_message(event.device, event.envelope, now)
            case ChunkReceived():
                return self._on_chunk(event.device, event.chunk, now)
            case TimePassed():
                return self._on_time(now)
            case DevicePresence():
                return self._on_presence(event.device, event.state, now)
            case ModelPublished() | UpdateStored() | UpdateRejected() | Aggregated():
                return self._on_completion(event, now)
            case _:
                return self._on_outside(event, now)

    def _on_completion(
        self, event: ModelPublished | UpdateStored | UpdateRejected | Aggregated, now: float
    ) -> list[Effect]:
        match event:
            case ModelPublished():
                return self._on_model_published(event, now)
            case UpdateStored():
                return self._on_update_stored(event, now)
            case UpdateRejected():
                return self._on_update_rejected(event, now)
            case Aggregated():
                return self._on_aggregated(event, now)

    def _on_outside(
        self,
        event: RunStarted | LinkChanged | HoldsChanged | DevicesRevoked | Interrupted | StopRequested | Suspended,
        now: float,
    ) -> list[Effect]:
        """Handle the events of the operator and of the link."""
        match event:
            case RunStarted():
                return self._start(now)
            case LinkChanged():
                return self._on_link(connected=event.connected, now=now)
            case HoldsChanged():
                return self._on_holds(event.holds, now)
            case DevicesRevoked():
                return self._on_revoked(event.devices, now)
            case Interrupted():
                return self._interrupt(now)
            case StopRequested():
                self._stops_after_round = True
                return self._advance(now)
            case Suspended():
                return self._suspend(Stopped.INTERRUPTED if event.handed_over else Stopped.FAILED, now)

    def _start(self, now: float) -> list[Effect]:
        self._started_at = now
        if self._rest_s:
            self._next_round_at = self._pause_until = now + self._rest_s
        if reason := self._stop_reason(now):
            return self._stop(reason[0], "the run is complete; give more --rounds or another --target-ua")
        return self._advance(now)

    def _on_presence(self, device: str, state: DeviceState, now: float) -> list[Effect]:
        state = self.fleet.relevant(state)
        known = self.fleet.members.get(device)
        known_boot = self.fleet.boot(device)
        # A broker sends retained presences again after each reconnect; the presence of a working device may be outdated.
        repeated = known is not None and known.state == state
        before = self.fleet.present
        if not self.fleet.update(device, state):
            return []
        if self.fleet.present > before:
            self._arrived_at = now
        if state.online:
            self.fleet.false_presence.said(device, is_shared=SHARED_ID_FEATURE in state.features)
        if known_boot and known_boot != self.fleet.boot(device):
            self._absences.restarted(device)
            self.fleet.false_presence.started(device, now)
        effects = self.open.on_presence(device, known_boot, state, now) if self.open and not repeated else []
        self._note_carrier(device, known_boot, state, now)
        return effects + self._advance(now)

    def _note_carrier(self, device: str, known_boot: str, state: DeviceState, now: float) -> None:
        """Note from a device's presence whether it still does its carried work."""
        work = self.carried.works.get(device)
        if work is None:
            return
        job = state.job
        if state.online:
            busy = job is not None and (job.run, job.round) == (self.spec.run, work.round)
            self.carried.note(device, busy=busy)
            if not busy and state.boot not in (known_boot, ""):
                self._uploads.release(device)
        self._count_expected(now)

    def _count_expected(self, now: float) -> None:
        """Give the open round the number of connected devices that do carried work."""
        if self.open is not None:
            self.open.round.expected = self._at_carried_work()
            self.open.round.tick(now)

    def _on_message(self, device: str, envelope: Envelope, now: float) -> list[Effect]:
        if self.fleet.held(device) == QUARANTINED:
            return self._envelopes.answer_quarantined(device, envelope)
        if isinstance(envelope.body, Decline) and envelope.run == self.spec.run:
            self.fleet.declined(device, envelope.body, now)
        if (work := self._carried_work(device, envelope)) is not None:
            return self._on_carried(device, work, envelope, now) + self._advance(now)
        stale = self._stale(device, envelope)
        if stale is RefuseReason.STALE_EPOCH and self.open is not None and self.open.awaits(device, envelope):
            # The device works for an earlier epoch of this coordinator. The same request moves its job to this epoch.
            return self.open.ask([device], now)
        if stale is not None or self.open is None:
            return self._envelopes.answer_stale(device, envelope, stale or RefuseReason.LATE)
        return self.open.on_message(device, envelope.body, now) + self._advance(now)

    def _carried_work(self, device: str, envelope: Envelope) -> CarriedWork | None:
        """Return the carried work that a message is about; None if it is about none."""
        if self.spec.carry is None or envelope.run != self.spec.run:
            return None
        admitted = self.open.works.get(device) if self.open is not None else None
        if admitted is not None:
            return admitted if admitted.round == envelope.round else None
        return self.carried.of(device, envelope.round)

    def _on_carried(self, device: str, work: CarriedWork, envelope: Envelope, now: float) -> list[Effect]:
        """Handle a message about carried work, whose device answers in the epoch and the round of its request."""
        if self.open is not None and device in self.open.works:
            return self.open.on_message(device, envelope.body, now)
        body = envelope.body
        work = replace(work, epoch=envelope.epoch, busy=True)
        match body:
            case Offer() if self.open is not None and self.open.takes(device):
                self.carried.take(device)
                self.open.admit(device, work, now)
                self._count_expected(now)
                return self.open.on_message(device, body, now)
            case Offer() if self.open is not None and device in self.open.round.participants:
                return self._envelopes.answer_stale(
                    device, envelope, self._known_reason(device, RefuseReason.SUPERSEDED)
                )
            case Offer():
                # Between two rounds: the next one takes the update.
                pause_s = min(KEEP_S, max(BETWEEN_ROUNDS_S, self._next_round_at - now))
                return [self._envelopes.answer_carried(device, work, RetryAfter(body.manifest.digest, pause_s))]
            case Need():
                # Chunks on their way still arrive. Only missing chunks of deltas are published again, not of an older model.
                if self.open is not None and self.open.publishes(body.digest):
                    return self.open.resend(body, now)
                self.carried.take(device)
                self._count_expected(now)
                return [self._envelopes.answer_carried(device, work, Cancel("stale"))]
            case Failed() | Decline():
                self.carried.take(device)
                self._count_expected(now)
            case Accept() | Progress():
                self.carried.note(device, busy=True, epoch=envelope.epoch)
                self._count_expected(now)
        return []

    def _known_reason(self, device: str, reason: RefuseReason) -> RefuseReason:
        """Return the reason, or LATE for a device of a version without carried work."""
        return reason if self.fleet.knows(device, CARRY_FEATURE) else RefuseReason.LATE

    def _on_chunk(self, device: str, chunk: Chunk, now: float) -> list[Effect]:
        return self.open.on_chunk(device, chunk, now) + self._advance(now) if self.open else []

    def _on_time(self, now: float) -> list[Effect]:
        if self.open is None:
            return self._advance(now)
        effects = self.open.check_link(now, connected=self._connected)
        if effects is None:
            effects = self.open.tick(now, connected=self._connected)
        return effects + self._advance(now)

    def _on_link(self, *, connected: bool, now: float) -> list[Effect]:
        self._connected = connected
        if self.open is not None:
            self.open.listen(connected=connected, now=now)
            if connected:
                self.open.link_is_back(now)
        return self._advance(now)

    def _on_holds(self, holds: Mapping[str, str], now: float) -> list[Effect]:
        """Exclude quarantined devices from the open round; drained devices finish it."""
        self.fleet.hold(holds)
        out = sorted(device for device, reason in holds.items() if reason == QUARANTINED)
        return self._expel(out, now, QUARANTINED)

    def _on_revoked(self, devices: frozenset[str], now: float) -> list[Effect]:
        self.fleet.revoke(devices)
        # A round that continues after a restart waits for devices that this process has not seen.
        at_work = [] if self.open is None else self.open.round.devices(*AT_WORK)
        awaited = [device for device in (*at_work, *self.carried.works) if device in devices]
        return self._expel(awaited, now, REVOKED)

    def _expel(self, devices: Sequence[str], now: float, reason: str) -> list[Effect]:
        """Exclude devices from the open round, if there is one, and take the next step: the round may wait for no device.

        No later round takes their carried work.
        """
        expelled: list[Effect] = []
        for device in devices:
            self._uploads.release(device)
            self.carried.drop(device)
            if self.open is not None:
                expelled += self.open.expel(device, now, reason)
        self._count_expected(now)
        return expelled + self._advance(now)

    def _interrupt(self, now: float) -> list[Effect]:
        if self.stopped:
            return []
        effects: list[Effect] = []
        if self.open is not None:
            spent_s = self.open.spent_s(now)
            self.open.round.abandon(now, "interrupted")
            effects = [SavePause(spent_s), *self.open.dismiss(), RetractModel()]
            self.open = None
        return [*effects, *self._stop(Stopped.INTERRUPTED, "")]

    def _suspend(self, stopped: Stopped, now: float) -> list[Effect]:
        pause = [] if self.open is None else [SavePause(self.open.spent_s(now))]
        self.open = None
        # No cancels: a resume takes the updates of the working devices.
        self.stopped = stopped
        return [*pause, EndRun(stopped, "")]

    def _on_model_published(self, event: ModelPublished, now: float) -> list[Effect]:
        # Algorithm 1, lines 4 and 5: each client of the round is invited, and downloads the global model.
        current = self._current(event)
        current.version = event.version
        # After a crash between a checkpoint and its record, work may be too old already.
        self._expired, cancels = self._expire(event.version)
        begun = current.begin(event, now)
        self._take_uploads(current, now)
        return cancels + begun + self._advance(now)

    def _expire(self, version: int) -> tuple[int, list[Effect]]:
        """Return the number of works whose base is too old for the next version, and the effects that end them."""
        if self.spec.carry is None:
            return 0, []
        stale = self.carried.expire(version, self.spec.carry.max_staleness)
        for device in stale:
            self._uploads.release(device)
        return len(stale), [
            self._envelopes.answer_carried(device, work, Cancel("stale")) for device, work in sorted(stale.items())
        ]

    def _take_uploads(self, current: ActiveRound, now: float) -> None:
        """Take in the devices that were uploading when the last round ended, so that their uploads continue."""
        for device in [device for device in self.carried.works if self._uploads.holds(device)]:
            if current.takes(device):
                current.admit(device, self.carried.take(device), now)
                current.round.handle(device, ParticipantEvent.OFFER, now)
        if self.spec.carry is not None:
            self._count_expected(now)

    def _on_update_stored(self, event: UpdateStored, now: float) -> list[Effect]:
        # Algorithm 1, lines 15 to 18: the upload of a client is complete.
        if self.open is None or self.open.round.number != event.round:
            return []
        return self.open.stored(event.device, event.digest, event.report, now) + self._advance(now)

    def _on_update_rejected(self, event: UpdateRejected, now: float) -> list[Effect]:
        if self.open is None or self.open.round.number != event.round:
            return []
        return self.open.refuse(event.device, event.digest, event.reason, event.detail, now) + self._advance(now)

    def _on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        # Algorithm 1, lines 19 to 22 are done: the round closes, and line 2 is next.
        current = self._current(event)
        current.aggregated = event
        current.leave_out(event.left_out)
        if event.left_out and len(current.reports) < current.round.needed:
            current.round.abandon(now, "groups_lost")
            return self._close("failed", now) + self._advance(now)
        current.round.finish(now)
        assert current.round.quorum_s is not None
        self._quorum_seconds.append(current.round.quorum_s)
        return self._close("aggregated", now) + self._advance(now)

    def _current(self, event: ModelPublished | Aggregated) -> ActiveRound:
        if self.open is None:
            raise IllegalTransition(f"{type(event).__name__} without an open round")
        return self.open

    def next_deadline(self) -> float | None:
        """Return the time at which the event TimePassed is due; None if there is none."""
        if self.stopped:
            return None
        if self.open is not None:
            return self.open.next_deadline()
        candidates = (self._wait_until, self._ends_at, self._pause_until, self.fleet.next_pause_end())
        return min((d for d in candidates if d is not None), default=None)

    def eta_s(self, now: float) -> float | None:
        """Return the expected seconds to the quorum, by earlier rounds; None without them or without an open round."""
        if not self._quorum_seconds or self.open is None:
            return None
        return max(0.0, statistics.median(self._quorum_seconds[-10:]) - self.open.round.elapsed_s(now))

    def pause_s(self, now: float) -> float:
        """Return the seconds until the next round may begin; 0 while one is open."""
        return 0.0 if self.open is not None or self._pause_until is None else max(0.0, self._pause_until - now)

    def wait_s(self, now: float) -> float:
        """Return the seconds for which the run waits for devices at most; 0 if it does not wait."""
        return 0.0 if self.open is not None or self._wait_until is None else max(0.0, self._wait_until - now)

    @property
    def last_round(self) -> int:
        """The number of the last round that began; `first_round` - 1 if no round has begun."""
        if self.open is not None:
            return self.open.round.number
        return self.records[-1].round if self.records else self.spec.first_round - 1

    @property
    def present(self) -> int:
        """The number of devices that count and can be invited to the next round, or whose update waits for it."""
        return self._present_without(self._uncounted)

    def _present_without(self, devices: Collection[str]) -> int:
        """Return the number of devices that can be invited, without these, or whose update waits."""
        others = self.fleet.count_eligible({*devices, *self._waiting})
        return self.fleet.present - others + len(self._waiting)

    @property
    def rounds_in_all(self) -> int:
        """The number of the last round of the run, as far as is known; evaluate rounds have numbers too."""
        every = self.spec.evaluate_every
        return self.spec.rounds + max(self._evaluations, self.spec.rounds // every if every else 0)

    @property
    def evaluates_next(self) -> bool:
        """True if the open round, or else the next one, is an evaluate round: once after `evaluate_every` training rounds."""
        if self.open is not None:
            return self.open.evaluates
        if self.spec.evaluates_only:
            return not self._evaluated
        trained = self._trained_rounds
        due = self.spec.evaluate_every > 0 and trained > 0 and trained % self.spec.evaluate_every == 0
        return due and self._unfinished is None and not self.records[-1].is_evaluation

    @property
    def _trained_rounds(self) -> int:
        return self.last_round - self._evaluations

    def note_restarted(self, devices: Iterable[str]) -> None:
        """Invite restarted devices in the next round, even if they are absent."""
        for device in devices:
            self._absences.restarted(device)

    def required_devices(self) -> int:
        """Return the number of devices that must be `present` before the next round: a quorum, or all for the first one.

        Held devices are not among them.
        """
        needed = self._needed()
        if self._selected:
            return needed
        return max(needed, self.fleet.wanted(self.spec.devices) - self.fleet.count_eligible(self._uncounted))

    @property
    def _uncounted(self) -> set[str]:
        """The devices for which no round begins (coordinator.rounds.missed_rounds).

        A device that has missed one round only may stand in for another one in the next round.
        """
        standing, absences = self._standing, self._absences
        if standing.all_count:
            return set()
        again = {device for device, rounds in absences.missed.items() if rounds > 1}
        skipped = absences.skipped(self.last_round + 1)
        return again | skipped | (set() if standing.unsteady_count else absences.unsteady)

    @property
    def _ends_at(self) -> float | None:
        return None if self.spec.time_limit_s is None else self._started_at + self.spec.time_limit_s

    def _stale(self, device: str, envelope: Envelope) -> RefuseReason | None:
        spec = self.spec
        if envelope.run == spec.run and envelope.epoch < spec.epoch:
            return RefuseReason.STALE_EPOCH
        current = (spec.run, spec.epoch, self.open.round.number if self.open else 0)
        if self.open is None or (envelope.run, envelope.epoch, envelope.round) != current:
            older = self.spec.carry is not None and envelope.run == spec.run and envelope.round <= self.last_round
            return self._known_reason(device, RefuseReason.STALE) if older else RefuseReason.LATE
        if device not in self.open.round.participants:
            return RefuseReason.NOT_INVITED
        phase = self.open.round.phase
        if phase is Phase.UNMASKING:
            return RefuseReason.LATE if isinstance(envelope.body, Offer) else None
        return None if phase in (Phase.RECRUITING, Phase.COLLECTING) else RefuseReason.LATE

    def _advance(self, now: float) -> list[Effect]:
        """Return the effects of the next step, if its condition is met; called after every event."""
        if self.stopped:
            return []
        if self.open is None:
            return self._next_round(now)
        effects = [*self.open.advance_masking(now), *self.open.grant(now)]
        phase = self.open.round.phase
        if phase is Phase.FAILED:
            outcome = "evaluation_failed" if self.open.evaluates else "failed"
            return effects + self._close(outcome, now) + self._advance(now)
        if phase is Phase.AGGREGATING and self.open.evaluates:
            self.open.round.finish(now)
            return effects + self._close("evaluated", now) + self._advance(now)
        if phase is Phase.AGGREGATING and not self._aggregates:
            # Algorithm 1, lines 19 to 22: a new global model from the updates of the round's clients.
            self._aggregates = True
            effects += [] if self.open.dismissed else self.open.dismiss()
            effects.append(self.open.aggregation())
        return effects

    def _next_round(self, now: float) -> list[Effect]:
        self.fleet.wake(now)
        # Algorithm 1, line 2: while the termination criteria are not met.
        reason = self._stop_reason(now)
        if reason is not None:
            return self._stop(*reason)
        if self._pause_until is not None and now >= self._pause_until:
            self._pause_until = None
        if not self._connected:
            self._waits_since = self._wait_until = None
            return []
        if self._unfinished is not None:
            opening, self._unfinished = self._unfinished, None
            spent_s = opening.ledger.spent_s + now - self._started_at
            taken = {device for device, update in opening.updates.items() if update.work is not None}
            for device in taken & self.carried.works.keys():
                self.carried.take(device)
            return self._open_round(replace(opening, ledger=replace(opening.ledger, spent_s=spent_s)), now)
        spec = self.spec
        # An evaluate round after a training round asks the present devices, and does not wait for others.
        if not (self._selected and self.evaluates_next) and not self._enough(now):
            if now < self._waiting_ends_at:
                return []
            return self._stop(Stopped.FAILED, self.fleet.missing_text(self.required_devices(), spec.wait_s))
        self._waits_since = self._wait_until = None
        if self._pause_until is not None and not self.evaluates_next:
            return []
        joined = self._join_groups()
        return [*joined, *self._open_round(self._select(self.last_round + 1), now)]

    def _join_groups(self) -> list[Effect]:
        """Draw masked groups of the devices that have none yet; return the effect that saves them before a roster is sent."""
        secure = self.spec.secure
        if secure is None or self.evaluates_next:
            return []
        devices = [device for device in self.fleet.eligible() if not self.fleet.sums(device)]
        added = self._groups.join(devices, size=secure.size, least=secure.least)
        entries = tuple(MaskingEntry(number, "roster", device, b"") for number, device in added)
        return [SaveGroupSteps(REGISTER, entries)] if entries else []

    def _select(self, number: int) -> RoundStart:
        # Algorithm 1, line 3: select the clients of the round, a share C of those that can be asked.
        spec, meant = self.spec, self._meant()
        works = self.carried.works.items()
        at_work = {device for device, work in works if work.busy or self._uploads.holds(device)}
        engaged = at_work | self._waiting.keys()
        room = meant if spec.carry is None else max(0, meant - len(self._waiting) - self._at_carried_work())

        def draw_some(devices: Sequence[str]) -> Selection:
            # Training rounds draw as they would without evaluate rounds between them.
            drawn = draw(devices, room, spec.over_select, spec.seed, number - self._evaluations)
            if spec.secure is None or self.evaluates_next:
                return drawn
            order = draw(devices, len(devices), 1.0, spec.seed, number - self._evaluations).invited
            return replace(drawn, invited=self._groups.whole(order, len(drawn.invited)))

        evaluates = self.evaluates_next
        free = [device for device in self.fleet.eligible() if device not in engaged]
        if evaluates:
            free = [device for device in free if self.fleet.knows(device, EVALUATE_FEATURE)]
        standing = self._standing
        chosen = self._absences.choose(
            free, draw_some, number, all_count=standing.all_count, unsteady_count=standing.unsteady_count
        )
        self._selected = True
        self.fleet.awaited = frozenset()
        carried = self.carried.works | {
            device: one.work for device, one in self._waiting.items() if one.work is not None
        }
        journal = RoundJournal(
            number, meant, chosen.invited, base="", absent=chosen.absent, carried=carried, evaluates=evaluates
        )
        return RoundStart(journal, self._waiting)

    def _at_carried_work(self) -> int:
        """Return the number of connected devices that do carried work, without absent ones: nothing waits for these."""
        return sum(self.fleet.is_online(device) for device in self.carried.busy - self._absences.missed.keys())

    @property
    def _patience_s(self) -> float:
        """The seconds to wait for devices: more while some devices have not loaded their task yet."""
        return self.spec.wait_s + (STARTING_S if self.fleet.starting else 0.0)

    @property
    def _waiting_ends_at(self) -> float:
        """The time at which the run fails without enough devices. Before the round is due, it does not wait for them."""
        assert self._waits_since is not None
        return max(self._waits_since, self._next_round_at) + self._patience_s

    def _enough(self, now: float) -> bool:
        """Return whether enough devices are present for a round; coordinator.cohort.quorum.RULE has the waiting times."""
        if self.present >= self.required_devices() and self._settled(now):
            return True
        self._waits_since = now if self._waits_since is None else self._waits_since
        self._wait_until = self._waiting_ends_at
        if (settles_at := self._settles_at) is not None and now < settles_at:
            self._wait_until = min(self._wait_until, settles_at)
            return False
        if not self._selected and not self._resumed:
            return False
        give_up_at = self._waits_since + min(RETURN_S, self.spec.wait_s)
        if now < give_up_at:
            self._wait_until = give_up_at
            return False
        self.fleet.give_up(self.spec.devices)
        if self.present >= self._needed():
            return True
        self._absences.ask_all()
        return self._present_without(()) >= self._needed()

    @property
    def _settles_at(self) -> float | None:
        """The time at which a first round with fewer than `devices` devices may begin; None if held devices are not the cause.

        Another device may have taken the place of a held one, and may still be on its way.
        """
        if self._selected or self.present >= self.spec.devices or self.present < self.required_devices():
            return None
        held = self.fleet.wanted(self.spec.devices) < self.spec.devices
        return self._arrived_at + SETTLE_S if held else None

    def _settled(self, now: float) -> bool:
        settles_at = self._settles_at
        return settles_at is None or (now >= settles_at and not self.fleet.starting)

    @property
    def _standing(self) -> Standing:
        return self.fleet.standing(self.spec.devices)

    def _meant(self) -> int:
        """Return the number of devices that the next round is meant for."""
        spec, policy = self.spec, self.spec.policy
        if self.evaluates_next:
            return max(1, devices_meant(self._standing, spec.evaluate_participation, policy.quorum, 1))
        if spec.carry is not None and spec.carry.concurrency is not None:
            return spec.carry.concurrency
        least = self._least(max(policy.min_cohort, policy.quorum_updates or 0))
        return max(least, devices_meant(self._standing, spec.participation, policy.quorum, policy.min_cohort))

    def _needed(self) -> int:
        """Return the number of devices that the next round needs: for its quorum, and for the smallest masked group."""
        policy = self.spec.policy
        if self.evaluates_next:
            return 1
        if policy.quorum_updates is not None:
            return max(self._least(policy.min_cohort), policy.quorum_updates)
        return self._least(updates_needed(self._meant(), policy.quorum, policy.min_cohort))

    def _least(self, number: int) -> int:
        """Return the number of devices, or the size of the smallest masked group if that is larger."""
        secure = self.spec.secure
        # A relay is one device here, and its site has a group.
        return number if secure is None or self.fleet.has_relay_of_sums() else max(number, secure.least)

    def _open_round(self, opening: RoundStart, now: float) -> list[Effect]:
        left_s = None if self._ends_at is None else self._ends_at - now
        policy = policy_of(self.spec, self.records)
        if opening.ledger.evaluates:
            policy = evaluation_policy(policy)
        else:
            self._next_round_at = now - opening.ledger.spent_s + self.spec.round_interval_s
        # Evaluate rounds have numbers too: only training rounds count for the measurements of learning alone.
        measures = opening.measures
        if measures is None:
            measures = measures_independent(self.spec.independent_every, opening.ledger.round - self._evaluations)
        spec = replace(self.spec, policy=policy, independent_every=int(measures))
        self._aggregates = False
        uploads = self._uploads if spec.carry is not None else None
        self.open = ActiveRound(spec, opening, self.fleet, self._envelopes, self._jitter, left_s, now, uploads)
        self.open.groups = self._groups
        if spec.carry is not None:
            self.open.speeds, self._waiting = self._speeds, {}
            self._count_expected(now)
        chunks = not self.fleet.all_know(opening.ledger.invited, URL_FEATURE)
        return [PublishModel(opening.ledger.round, chunks, trains=not opening.ledger.evaluates)]

    def _stop_reason(self, now: float) -> tuple[Stopped, str] | None:
        spec, records = self.spec, self.records
        if spec.evaluates_only and self._evaluated:
            return Stopped.MAX_ROUNDS, ""
        if not self.evaluates_next and (reason := self._training_done(now)) is not None:
            return reason
        # A round that ended at the run's time limit may have ended a rounding error before it.
        if self._ends_at is not None and now >= self._ends_at - _ROUNDING_S:
            return Stopped.DEADLINE, self._nothing_words(now)
        if self._stops_after_round:
            return Stopped.INTERRUPTED, ""
        if self._failures >= spec.max_failed_rounds:
            why = "; ".join((_last_words(records[-1]), *self.fleet.false_presence.words()))
            return Stopped.FAILED, f"{self._failed} rounds in a row failed, {why}"
        return None

    def _training_done(self, now: float) -> tuple[Stopped, str] | None:
        """Return the reason for the end of the training: target or number of rounds; None while it continues."""
        spec = self.spec
        last = next((record for record in reversed(self.records) if not record.is_evaluation), None)
        if last is not None and spec.target_ua is not None:
            ua = last.user_accuracy
            measured = last.outcome == "aggregated" and last.measured >= last.needed
            if measured and ua is not None and spec.metric.reached(ua, spec.target_ua):
                return Stopped.TARGET_UA, ""
        if self._trained_rounds >= spec.rounds:
            return Stopped.MAX_ROUNDS, self._nothing_words(now)
        return None

    def _nothing_words(self, now: float) -> str:
        """Return an error text for a run without a successful training round; "" if there is one."""
        trained = [record for record in self.records if not record.is_evaluation]
        if not trained:
            waited_s = round(now - self._started_at, 1)
            return f"no round began: {self.fleet.missing_text(self.required_devices(), waited_s)}"
        if any(record.outcome == "aggregated" for record in trained):
            return ""
        why = "; ".join((_last_words(trained[-1]), *self.fleet.false_presence.words()))
        return f"no round succeeded, so the model is unchanged; {why}"

    def _note_failure(self, now: float, *, excused: bool) -> None:
        """Count a failed round, unless it is excused, or follows the last failure within the recruiting deadline."""
        self._failed += 1
        spread = now >= self._failed_at + self.spec.policy.recruit_deadline_s
        if spread and not excused:
            self._failures += 1
            self._failed_at = now

    def _close(self, outcome: str, now: float) -> list[Effect]:
        assert self.open is not None
        effects = [] if self.open.dismissed else self.open.dismiss()
        record = self.open.record(outcome)
        if record.is_evaluation:
            return [*effects, *self._close_evaluation(record)]
        left = self.open.round.left
        record = replace(record, absent=self._note_absences(self.open, record.round, failed=outcome == "failed"))
        record = self._note_far(record, self.open.reports.keys())
        excused = not left <= self._left_before or self._reveals_absent
        self._left_before |= left
        if outcome == "failed":
            self._note_failure(now, excused=excused)
        else:
            self._failed, self._failures, self._failed_at = 0, 0, -math.inf
        if self.spec.carry is not None:
            record, stale = self._carry_on(self.open, record)
            effects += stale
        self.open = None
        self.records.append(record)
        self._pause_until = self._next_round_at
        if outcome == "failed":
            # Owners' conditions and links change with time, so the pause grows with each failure.
            pause_s = min(self.spec.wait_s, self.spec.longest_pause_s, RETRY_S * 2 ** min(self._failed - 1, 30))
            self._pause_until = max(self._pause_until, now + pause_s)
        ends = self._stop_reason(now)
        # If the operator stops a run, a resume continues the run and its carried work.
        if record.buffered is not None and ends is not None and ends[0] is not Stopped.INTERRUPTED:
            record = replace(record, buffered=replace(record.buffered, waiting=0, unused=len(self._waiting)))
            self.records[-1], self._waiting = record, {}
            return [*effects, RetractModel(), SaveRecord(record)]
        rest_s = max(0.0, self._next_round_at - now)
        return [*effects, RetractModel(), SaveRecord(record, self._all_carried(), rest_s)]

    def _note_absences(self, current: ActiveRound, number: int, *, failed: bool) -> Mapping[str, int]:
        """Note the devices that missed a round; return the missed rounds in a row by absent device.

        A failed round waited in vain for the carried work of earlier rounds too, and the next one cannot count on a device
        that failed, or that is away. A device that stays away is absent once: it is invited as soon as it is back.
        """
        known, before = set(self._absences.missed), set(self._absences.ever)
        away = set(self.fleet.missing())
        lost = {*self.carried.works, *current.failed, *(away - known)} if failed else set[str]()
        absent = self._absences.note(
            number,
            {*current.missed, *lost},
            current.reports.keys(),
            current.round.left | self.fleet.left,
            () if failed else current.failed,
            away,
        )
        invited = current.round.participants
        mute = {device for device in current.unheard if self.fleet.is_online(device)}
        self.fleet.false_presence.round_over(mute, invited.keys() - mute)
        self.fleet.absent, self.fleet.unsteady = absent, self._absences.unsteady
        news = (absent.keys() - known | set(current.failed)) - before
        self._reveals_absent = bool(news) and not self._standing.all_count
        return absent

    def _note_far(self, record: RoundRecord, reported: Collection[str]) -> RoundRecord:
        """Return the record with the devices whose updates were far from the others; a failed round changes none."""
        if record.outcome == "aggregated":
            median = record.pull_quantiles.get("p50", 0.0)
            self._far = far_rounds(self._far, record.pulls, median, reported)
        return replace(record, far=self._far)

    def _close_evaluation(self, record: RoundRecord) -> list[Effect]:
        """End an evaluate round, which changes nothing for the training rounds after it."""
        record = replace(record, absent=self.fleet.absent, far=self._far)
        self.open = None
        self.records.append(record)
        self._evaluations += 1
        self._evaluated = True
        return [RetractModel(), SaveRecord(record)]

    def _carry_on(self, current: ActiveRound, record: RoundRecord) -> tuple[RoundRecord, list[Effect]]:
        """Carry the work of a round that is over into the next one, and end work whose base is too old for that."""
        aggregated = record.outcome == "aggregated"
        self._waiting = {} if aggregated else current.committed_work()
        staleness: Counter[str] = Counter()
        if aggregated:
            for device in current.reports:
                staleness[str(self._age(current, device))] += 1
        self.carried.add(current.work_left())
        stale, cancels = self._expire(current.version + aggregated)
        figures = BufferedFigures(
            carried=len(self.carried.works),
            waiting=len(self._waiting),
            stale=stale + self._expired,
            staleness=dict(sorted(staleness.items(), key=lambda one: int(one[0]))),
            weights=self._speeds.shares(self._weights_in(current)) if aggregated else (),
        )
        return replace(record, buffered=figures), cancels

    def _age(self, current: ActiveRound, device: str) -> int:
        """Return the staleness of the update of a device."""
        work = current.works.get(device)
        return 0 if work is None else current.version - work.version

    def _weights_in(self, current: ActiveRound) -> dict[str, float]:
        """Return the weight of each update in a version."""
        carry = self.spec.carry
        assert carry is not None
        counted = {device: report.num_examples for device, report in current.reports.items() if report is not None}
        weighs = example_weights(counted, self.spec.limits.examples, current.members)
        return {device: weight * carry.factor(self._age(current, device)) for device, weight in weighs.items()}

    def _all_carried(self) -> dict[str, CarriedWork]:
        """Return the unfinished work, and the work of committed updates that wait."""
        waiting = {device: update.work for device, update in self._waiting.items() if update.work is not None}
        return self.carried.works | waiting

    def _stop(self, reason: Stopped, detail: str) -> list[Effect]:
        self.stopped = reason
        works = {} if reason is Stopped.INTERRUPTED else self.carried.works
        cancels = [
            self._envelopes.answer_carried(device, work, Cancel("late")) for device, work in sorted(works.items())
        ]
        return [*cancels, EndRun(reason, detail)]


def _last_words(record: RoundRecord) -> str:
    return f"the last one: {record.failure}, with {record.reported} of the {record.needed} updates needed"


def run_effects(engine: Engine, effects: Iterable[Effect], handler: EffectHandler, clock: Callable[[], float]) -> None:
    """Run effects in order, and the effects that follow from their completion events.

    Args:
        engine: Handles each completion event before the handler continues.
        effects: Effects of an event that the engine has handled.
        handler: Runs the effects.
        clock: Returns the run's time, in seconds, for completion events.
    """
    queue = deque(effects)
    while queue:
        for event in handler.run_effect(queue.popleft()):
            queue.extend(engine.handle(event, clock()))
