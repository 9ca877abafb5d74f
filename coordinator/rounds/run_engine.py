"""A run as a state machine: one round after the other, until a termination criterion is met.

Events and the time go in (coordinator.rounds.run_events), effects come out (coordinator.rounds.run_effects). `drive_engine`
runs the effects with a handler and gives their completion events to the engine. Tensors never enter the engine.

The server's lines of Algorithm 1 (Mills, Hu and Min 2021; lines of the listing), with the method that implements each line:

     1  initialise the global model and optimiser     before the engine: coordinator.runtime.run_preparation
     2  while the termination criteria are not met    `_next_round`, `_stop_reason`
     3  select the clients of the round               `_select`
     4  for each client in parallel                   `_open_round`; invitations: ActiveRound.begin
   5-6  download the global model, optimiser values   PublishModel, `_on_model_published`
  7-15  patches, LocalUpdate                          on the device: device_agent.training.local_update
 16-18  upload, in chunks, what is not a patch        `_on_chunk`, `_on_update_stored`; StoreUpdate, an effect of ActiveRound
 20-23  GlobalModelUpdate, GlobalOptimUpdate          AggregateUpdates, an effect of ActiveRound; `_on_aggregated`

The engine knows the phase of its round: SELECTING, RECRUITING, COLLECTING (in both of them devices train and upload), UNMASKING
in a masked round, AGGREGATING, CLOSED or FAILED. `ActiveRound.round` changes it (coordinator.rounds.round_phases):

- The invitation is the work request, so a device that accepts begins at once. It is sent again until the device answers, after
  a silence, and when the device comes back; a device that is offline for `rejoin_s` has failed. No device is invited later in
  place of another.
- Recruiting ends when each device has answered, or at `recruit_deadline_s`, which a check of a silent link extends. The round
  fails if too few devices have accepted.
- Collecting ends when no device is at work any more, `grace_s` after the quorum, or at the deadline; uploading devices on which
  the quorum depends get up to `grace_s` more, until it is reached. Once recruiting is over, the round fails as soon as its
  quorum is out of reach, and later if masked groups are lost and the other updates are too few.
- `recruit_deadline_s` and the deadline count from the invitation, so the publication of the model takes nothing from them. A
  round that is open at the end of the run's time limit is finished: the limit shortens its deadline.

A training round is *meant* for a share C of the fleet that counts, offline devices included, rounded down; round_size has the
least numbers and those of evaluate and buffered rounds. Devices that missed their last round do not count while the others are
a majority. `over_select` invites more devices; unsteady devices, and absent ones whose turn it is, are invited besides. The
*quorum* is the share of the meant devices that must report, at least `min_cohort`; it decreases if more devices leave the count
during the round than were invited beyond the meant ones (coordinator.cohort.quorum). A device leaves the count of an open round
by quarantine, revocation, an offence or a lasting decline, not by going offline.

An epoch is a process of this coordinator, not a pass over data: each resume begins one, and the run's time limit with it.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.cohort.selection import Selection, draw
from fedpatch.coordinator.masking.masked_groups import REGISTER, RunGroups
from fedpatch.coordinator.rounds.active_round import ActiveRound, new_scheduler
from fedpatch.coordinator.rounds.auto_deadline import evaluation_policy, policy_of
from fedpatch.coordinator.rounds.carried_rounds import CarriedRounds
from fedpatch.coordinator.rounds.device_needs import needs_of
from fedpatch.coordinator.rounds.device_wait import DeviceWait
from fedpatch.coordinator.rounds.end_words import failed_words, fruitless_words
from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.evaluate_rounds import EvaluateRounds
from fedpatch.coordinator.rounds.failed_rounds import FailedRounds
from fedpatch.coordinator.rounds.far_updates import FarUpdates
from fedpatch.coordinator.rounds.held_devices import QUARANTINED, REVOKED
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.missed_rounds import Absences
from fedpatch.coordinator.rounds.missing_devices import missing_text
from fedpatch.coordinator.rounds.outdated_messages import OutdatedMessages
from fedpatch.coordinator.rounds.participant_transitions import AT_WORK, Phase
from fedpatch.coordinator.rounds.round_attendance import Attendance
from fedpatch.coordinator.rounds.round_journal import CommittedUpdate, MaskingEntry, RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_pace import RoundPace
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_size import RoundSize
from fedpatch.coordinator.rounds.run_effects import (
    Effect,
    EffectHandler,
    EndRun,
    PublishModel,
    RetractModel,
    SaveGroupSteps,
    SaveRecord,
    SaveSpentTime,
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
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.termination import RunProgress, Stopped, stop_reason
from fedpatch.coordinator.rounds.work_requests import measures_independent
from fedpatch.shared.deadlines import earliest
from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.wire.features import EVALUATE_FEATURE, SHARED_ID_FEATURE, URL_FEATURE
from fedpatch.shared.wire.messages import Decline
from fedpatch.shared.wire.reason_codes import RefuseReason

_ROUNDING_S = 1e-3  # two sums of floating point numbers may differ


class Engine:
    """Runs the rounds of one run. `handle` takes an event and returns the effects to run, in order.

    Args:
        spec: The terms of the run.
        records: The records of earlier rounds of the run.
        earlier: Records of rounds that another engine ran, such as those of a relay's site: their absent devices and far
            updates count.
        unfinished: The round that was open at the end of the last epoch.
        resumable: Open rounds of other runs, by run (OutdatedMessages).
        jitter: Randomness of the times at which devices retry their uploads.
        holds: Devices that are quarantined or drained at the start, each with the kind of the hold.
        seen: Devices that earlier epochs have seen with the task; they count although they may be offline.
        last_run: Devices that the fleet's last run has seen with the task. The first round waits for `devices` devices, less
            the held ones for which no other device is known; missing devices of the last run are named.
        carried: Work for rounds that are over, by device (coordinator.buffered).
        waiting: Committed updates of a failed round that wait for the next version, by device; only in buffered runs.
        rest_s: The rest of `round_interval_s` after the last aggregated round, in seconds; not used if a round is unfinished.
            The pause after failed rounds and their number do not outlast a process.
        groups: The masked groups of the run; None in a run without masks.

    Attributes:
        open: The open round; None between two rounds.
        records: The records of the rounds that are over.
        fleet: The known devices.
        carried: The work of earlier rounds.
        stopped: The reason for the end of the run; None while it goes on.

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
        self.open: ActiveRound | None = None
        self.records = list(records)
        self.stopped: Stopped | None = None
        limits = spec.limits
        self.fleet = Fleet(
            spec.task, limits.max_devices, spec.encoding, needs_of(spec), limits.max_members, spec.devices
        )
        self._jitter = jitter
        self._groups = groups or RunGroups(spec.seed)
        self._uploads = new_scheduler(spec, jitter)
        self._envelopes = EnvelopeFactory(spec)
        self._outdated = OutdatedMessages(spec, self.fleet, self._envelopes, resumable)
        self.carried = CarriedRounds(spec, self.fleet, self._envelopes, self._outdated, self._uploads, carried, waiting)
        self._absences = Absences([*earlier, *self.records])
        self._attendance = Attendance(self._absences, self.fleet)
        self._far = FarUpdates([*earlier, *self.records])
        self._evaluations = EvaluateRounds(spec, self.records)
        self._failures = FailedRounds(spec)
        self._size = RoundSize(spec, self.fleet, self._absences, self.carried)
        resumed = bool(earlier or self.records) or unfinished is not None
        self._wait = DeviceWait(spec.wait_s, spec.devices, self._size, self.fleet, self._absences, resumed=resumed)
        self._pace = RoundPace(spec.round_interval_s)
        self._rest_s = rest_s
        self._started_at = 0.0
        self._unfinished = unfinished
        self._stops_after_round = False
        self._connected = True
        # The seconds to the quorum of each round of this process.
        self._quorum_seconds: list[float] = []
        self._remember_devices(holds or {}, seen, last_run)

    def _remember_devices(self, holds: Mapping[str, str], seen: Collection[str], last_run: Collection[str]) -> None:
        """Tell the fleet of devices that earlier processes have known."""
        offenders = [record.offenders for record in self.records]
        offenders += [self._unfinished.journal.offenders] if self._unfinished is not None else []
        for device, offence in (one for known in offenders for one in known.items()):
            self.fleet.exclude_offender(device, offence)
        self.fleet.remember(seen)
        self.fleet.count.expect(last_run)
        self.fleet.hold(holds)
        for device in [device for device in self.carried.works if self.fleet.held(device) == QUARANTINED]:
            self.carried.drop(device)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event that happened at `now`, in seconds of the run's clock.

        Returns:
            The effects that follow, in the order in which they must run.

        Raises:
            IllegalTransition: ModelPublished or Aggregated without an open round. Other late completions are ignored.
        """
        return self._HANDLERS[type(event)](self, event, now)

    # --- Algorithm 1, line 2: from one round to the next ---

    def _advance(self, now: float) -> list[Effect]:
        """Return the effects of the next step, if its condition is met; called after each event that may meet it."""
        if self.stopped:
            return []
        if self.open is None:
            return self._next_round(now)
        current = self.open
        effects = [*current.advance_masking(now), *current.grant(now)]
        match current.round.phase:
            case Phase.FAILED:
                outcome = "evaluation_failed" if current.evaluates else "failed"
                return effects + self._close(current, outcome, now) + self._advance(now)
            case Phase.AGGREGATING if current.evaluates:
                current.round.finish(now)
                return effects + self._close(current, "evaluated", now) + self._advance(now)
            case Phase.AGGREGATING:
                # Algorithm 1, lines 20 to 23: a new global model from the updates of the clients; requested once.
                return effects + current.aggregate()
        return effects

    def _next_round(self, now: float) -> list[Effect]:
        """Begin the next round, or end the run; no effects while it waits.

        1. A termination criterion is met: the run ends.
        2. There is no link to the broker: wait. This time is no waiting time for devices.
        3. An earlier process has left a round open: continue it.
        4. Too few devices count: wait for them, after `wait_s` fail (`DeviceWait`). The first round that this process selects
           waits for all (after a resume for a while only). Any other begins with a quorum; short of one, devices that stay
           away soon do not count, so that fewer are enough.
        5. The interval or the pause after a failed round is not over: wait, except before an evaluate round.
        6. Select the clients and open the round.
        """
        self.fleet.wake(now)
        self._pace.wake(now)
        if (reason := self._stop_reason(now)) is not None:
            return self._stop(reason, self._end_words(reason, now))
        if not self._connected:
            self._wait.reset()
            return []
        if self._unfinished is not None:
            return self._continue_round(self._unfinished, now)
        evaluates, number = self.evaluates_next, self.last_round + 1
        # Once this process has selected a round, an evaluate round asks the present devices, and does not wait for others.
        asks_present = evaluates and not self._wait.first
        if not asks_present and not self._wait.wait_for_enough(now, number, self._pace.next_at, evaluates=evaluates):
            if now < self._wait.ends_at(self._pace.next_at):
                return []
            return self._stop(Stopped.FAILED, missing_text(self.fleet, self.required_devices(), self.spec.wait_s))
        self._wait.reset()
        if self._pace.pauses and not evaluates:
            return []
        joined = [] if evaluates else self._join_groups()
        return [*joined, *self._open_round(self._select(number, evaluates=evaluates), now)]

    def _stop_reason(self, now: float) -> Stopped | None:
        # The deadline of a round that ends at the time limit may be reached a rounding error before it.
        out_of_time = self._ends_at is not None and now >= self._ends_at - _ROUNDING_S
        progress = RunProgress(
            records=self.records,
            trained=self.last_round - self._evaluations.number,
            evaluates_next=self.evaluates_next,
            evaluated=self._evaluations.ended,
            out_of_time=out_of_time,
            stop_requested=self._stops_after_round,
            failures=self._failures.counted,  # without excused ones, and those soon after a counted one
        )
        return stop_reason(self.spec, progress)

    def _end_words(self, reason: Stopped, now: float) -> str:
        """Return the words for the end of the run; "" where the aim was reached, or the operator ended it."""
        false_presence = self.fleet.false_presence
        if reason is Stopped.FAILED:
            return failed_words(self.records, self._failures.in_a_row, false_presence)
        if reason not in (Stopped.MAX_ROUNDS, Stopped.DEADLINE) or self._evaluations.completes_run:
            return ""
        if any(not record.is_evaluation for record in self.records):
            return fruitless_words(self.records, false_presence)
        waited_s = round(now - self._started_at, 1)
        return f"no round began: {missing_text(self.fleet, self.required_devices(), waited_s)}"

    def _stop(self, reason: Stopped, detail: str) -> list[Effect]:
        self.stopped = reason
        # An interrupted run can resume, so its devices keep their carried work.
        cancels = [] if reason is Stopped.INTERRUPTED else self.carried.cancels()
        return [*cancels, EndRun(reason, detail)]

    # --- Algorithm 1, lines 3 to 6: select, invite and send the model ---

    def _join_groups(self) -> list[Effect]:
        """Draw masked groups of the devices that have none yet; return the effect that saves them before a roster is sent."""
        secure = self.spec.secure
        if secure is None:
            return []
        devices = [device for device in self.fleet.eligible() if not self.fleet.sums(device)]
        added = self._groups.join(devices, size=secure.size, least=secure.least)
        entries = tuple(MaskingEntry(number, "roster", device, b"") for number, device in added)
        return [SaveGroupSteps(REGISTER, entries)] if entries else []

    def _select(self, number: int, *, evaluates: bool) -> RoundStart:
        # Algorithm 1, line 3: a share C of the fleet that counts, drawn from the devices that can be asked now.
        # Of unsteady devices, and of absent ones whose turn it is, the share that is invited of the others comes on top.
        spec, carried = self.spec, self.carried
        meant = self._size.meant(evaluates=evaluates)
        room = meant if spec.carry is None else max(0, meant - len(carried.waiting) - carried.at_work)
        # Training rounds draw as they would without evaluate rounds between them.
        draw_number = number - self._evaluations.number

        def draw_some(devices: Sequence[str]) -> Selection:
            drawn = draw(devices, room, spec.over_select, spec.seed, draw_number)
            if spec.secure is None or evaluates:
                return drawn
            order = draw(devices, len(devices), 1.0, spec.seed, draw_number).invited
            return replace(drawn, invited=self._groups.whole(order, len(drawn.invited)))

        engaged = carried.engaged
        free = [device for device in self.fleet.eligible() if device not in engaged]
        if evaluates:
            free = [device for device in free if self.fleet.knows(device, EVALUATE_FEATURE)]
        standing = self.fleet.count.standing
        chosen = self._absences.choose(
            free, draw_some, number, all_count=standing.all_count, unsteady_count=standing.unsteady_count
        )
        self._wait.note_first_selection()
        journal = RoundJournal(
            number,
            meant,
            chosen.invited,
            base="",
            absent=chosen.absent,
            carried=carried.all_works,
            evaluates=evaluates,
        )
        return RoundStart(journal, carried.waiting)

    def _continue_round(self, opening: RoundStart, now: float) -> list[Effect]:
        """Open the round that an earlier process has left open."""
        self._unfinished = None
        self.carried.resume(opening)
        # The journal's seconds include the time since a crash, but not the time since a stop that saved them (SaveSpentTime).
        spent_s = opening.journal.spent_s + now - self._started_at
        return self._open_round(replace(opening, journal=replace(opening.journal, spent_s=spent_s)), now)

    def _open_round(self, opening: RoundStart, now: float) -> list[Effect]:
        spec, journal = self.spec, opening.journal
        # The deadline may follow from earlier rounds; an evaluate round waits for all devices, and one answer is enough.
        policy = policy_of(spec, self.records)
        if journal.evaluates:
            policy = evaluation_policy(policy)
        else:
            self._pace.begin_round(now - journal.spent_s)
        # Devices measure learning alone once in so many training rounds; evaluate rounds have numbers too.
        measures = opening.measures
        if measures is None:
            measures = measures_independent(spec.independent_every, journal.round - self._evaluations.number)
        self.open = ActiveRound(
            replace(spec, policy=policy, independent_every=int(measures)),
            opening,
            self.fleet,
            self._envelopes,
            self._jitter,
            None if self._ends_at is None else self._ends_at - now,
            now,
            self._uploads if spec.carry is not None else None,
            self._groups,
            self.carried.speeds if spec.carry is not None else None,
        )
        self.carried.begin_round(self.open, now)
        # If each device can download by URL, chunks are only for files without a URL.
        chunks = not self.fleet.all_know(journal.invited, URL_FEATURE)
        return [PublishModel(journal.round, chunks, trains=not journal.evaluates)]

    def _on_model_published(self, event: ModelPublished, now: float) -> list[Effect]:
        # ActiveRound.begin saves the journal, so that a restart continues the round, and invites each client, which downloads
        # the global model. An evaluate round has no journal: a restart does not continue it.
        current = self._current(event)
        cancels = self.carried.expire(event.version)
        begun = current.begin(event, now)
        self.carried.continue_uploads(current, now)
        return cancels + begun + self._advance(now)

    # --- Algorithm 1, lines 7 to 18: devices answer, train, and upload what is not a patch ---

    def _on_message(self, event: DeviceMessage, now: float) -> list[Effect]:
        device, envelope, current = event.device, event.envelope, self.open
        if current is not None:
            current.link_check.note_arrival()
        if self.fleet.held(device) == QUARANTINED:
            return self._outdated.answer_quarantined(device, envelope)
        if isinstance(envelope.body, Decline) and envelope.run == self.spec.run:
            # The device is asked again after its own pause or with another presence; where the reason lasts, after a restart.
            self.fleet.declined(device, envelope.body, now)
        if (work := self.carried.work_of(device, envelope, current)) is not None:
            next_round_s = self._pace.next_at - now
            return self.carried.on_message(device, work, envelope, current, now, next_round_s) + self._advance(now)
        stale = self._outdated.reason(device, envelope, current, self.last_round)
        if stale is RefuseReason.STALE_EPOCH and current is not None and current.awaits(device, envelope):
            # The job of the device belongs to an earlier epoch; the same request, sent again, moves it to this one.
            return current.ask([device], now)
        if stale is not None or current is None:
            # The answer ends the job of the device, repeats that its update is committed, or lets it wait for a paused run.
            return self._outdated.answer(device, envelope, stale or RefuseReason.LATE)
        return current.on_message(device, envelope.body, now) + self._advance(now)

    def _on_chunk(self, event: ChunkReceived, now: float) -> list[Effect]:
        if self.open is None:
            return []
        self.open.link_check.note_arrival()
        return self.open.on_chunk(event.device, event.chunk, now) + self._advance(now)

    def _on_update_stored(self, event: UpdateStored, now: float) -> list[Effect]:
        # A late completion, of a round that is over, changes nothing.
        if self.open is None or self.open.round.number != event.round:
            return []
        return self.open.stored(event.device, event.digest, event.report, now) + self._advance(now)

    def _on_update_rejected(self, event: UpdateRejected, now: float) -> list[Effect]:
        if self.open is None or self.open.round.number != event.round:
            return []
        # The device has failed in this round; after an offence it is not invited again in this run.
        return self.open.refuse(event.device, event.digest, event.reason, event.detail, now) + self._advance(now)

    # --- Algorithm 1, lines 20 to 23: the next global model, and its record ---

    def _on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        current = self._current(event)
        current.aggregated(event, now)
        # Groups of a masked round had an impossible sum, and the other updates are too few.
        if current.round.phase is Phase.FAILED:
            return self._close(current, "failed", now) + self._advance(now)
        assert current.round.quorum_s is not None
        self._quorum_seconds.append(current.round.quorum_s)
        return self._close(current, "aggregated", now) + self._advance(now)

    def _close(self, current: ActiveRound, outcome: str, now: float) -> list[Effect]:
        """End the open round; return the effects that save its record, and the new model if there is one.

        Devices still at work were dismissed when collecting ended; of an evaluate round, or one that failed earlier, here.
        """
        dismissals = [] if current.dismissed else current.dismiss()
        record = current.record(outcome)
        self.open = None
        if record.is_evaluation:
            return [*dismissals, *self._close_evaluation(record)]
        failed = outcome == "failed"
        absent = self._attendance.end_round(current, self.carried.works, failed=failed)
        record = replace(record, absent=absent, far=self._far.end_round(record, current.reports.keys()))
        newly_absent = self._attendance.newly_absent
        self._failures.note_end(now, current.round.left, failed=failed, newly_absent=newly_absent)
        record, cancels = self.carried.end_round(current, record)
        self.records.append(record)
        self._evaluations.note_end(evaluated=False)
        self._pace.end_round(now, self._failures.pause_s)
        # A run that the operator stopped can resume, so its waiting updates stay; at any other end nothing takes them.
        if self.spec.carry is not None and self._stop_reason(now) not in (None, Stopped.INTERRUPTED):
            record = self.records[-1] = self.carried.drop_waiting(record)
            return [*dismissals, *cancels, RetractModel(), SaveRecord(record)]
        saves = SaveRecord(record, self.carried.all_works, self._pace.rest_s(now))
        return [*dismissals, *cancels, RetractModel(), saves]

    def _close_evaluation(self, record: RoundRecord) -> list[Effect]:
        """End an evaluate round, also a failed one: it changes nothing for the training rounds after it."""
        record = replace(record, absent=self.fleet.count.absent, far=self._far.counts)
        self.records.append(record)
        self._evaluations.note_end(evaluated=True)
        return [RetractModel(), SaveRecord(record)]

    def _current(self, event: ModelPublished | Aggregated) -> ActiveRound:
        if self.open is None:
            raise IllegalTransition(f"{type(event).__name__} without an open round")
        return self.open

    # --- the link, the operator and the fleet, at any time ---

    def _start(self, event: RunStarted, now: float) -> list[Effect]:
        self._started_at = now
        self._pace.start(now, self._rest_s)
        if (reason := self._stop_reason(now)) is not None:
            return self._stop(reason, "the run is complete; give more --rounds or another --target-ua")
        return self._advance(now)

    def _on_presence(self, event: DevicePresence, now: float) -> list[Effect]:
        device, current, fleet = event.device, self.open, self.fleet
        if current is not None:
            current.link_check.note_arrival()
        state = fleet.relevant(event.state)
        known = fleet.members.get(device)
        known_boot = fleet.boot(device)
        # A broker sends retained presences again after each reconnect; the presence of a working device may be outdated.
        repeated = known is not None and known.state == state
        before = fleet.present
        if not fleet.update(device, state):
            return []
        if fleet.present > before:
            self._wait.note_device(now)
        if state.online:
            fleet.false_presence.said(device, is_shared=SHARED_ID_FEATURE in state.features)
        if known_boot and known_boot != fleet.boot(device):
            self._absences.restarted(device)
            fleet.false_presence.started(device, now)
        effects = current.on_presence(device, known_boot, state, now) if current and not repeated else []
        self.carried.note_presence(device, known_boot, state, current, now)
        return effects + self._advance(now)

    def _on_time(self, event: TimePassed, now: float) -> list[Effect]:
        if self.open is None:
            return self._advance(now)
        effects = self.open.link_check.due(now, connected=self._connected)
        # Where no device was heard, the link is checked or awaited, and the time to answer is longer; None: recruiting may end.
        if effects is None:
            effects = self.open.tick(now, connected=self._connected)
        return effects + self._advance(now)

    def _on_link(self, event: LinkChanged, now: float) -> list[Effect]:
        self._connected = event.connected
        if self.open is not None:
            self.open.listen(connected=event.connected, now=now)
            if event.connected:
                self.open.link_check.link_is_back(now)
        return self._advance(now)

    def _on_holds(self, event: HoldsChanged, now: float) -> list[Effect]:
        """End the work of quarantined devices; drained devices finish the open round."""
        self.fleet.hold(event.holds)
        out = sorted(device for device, reason in event.holds.items() if reason == QUARANTINED)
        return self._expel(out, now, QUARANTINED)

    def _on_revoked(self, event: DevicesRevoked, now: float) -> list[Effect]:
        self.fleet.revoke(event.devices)
        # A round that continues after a restart waits for devices that this process has not seen.
        at_work = [] if self.open is None else self.open.round.devices(*AT_WORK)
        awaited = [device for device in (*at_work, *self.carried.works) if device in event.devices]
        return self._expel(awaited, now, REVOKED)

    def _expel(self, devices: Sequence[str], now: float, reason: str) -> list[Effect]:
        """End the work of devices for the open round, and take the next step: the round may wait for no device.

        Their committed updates still count. No later round takes their unfinished work.
        """
        expelled: list[Effect] = []
        for device in devices:
            self.carried.drop(device)
            if self.open is not None:
                expelled += self.open.expel(device, now, reason)
        self.carried.expect(self.open, now)
        return expelled + self._advance(now)

    def _interrupt(self, event: Interrupted, now: float) -> list[Effect]:
        """End the run at the operator's signal or an unexpected error; devices are cancelled, except for carried work."""
        if self.stopped:
            return []
        effects: list[Effect] = []
        if self.open is not None:
            spent_s = self.open.spent_s(now)
            self.open.round.abandon(now, "interrupted")
            effects = [SaveSpentTime(spent_s), *self.open.dismiss(), RetractModel()]
            self.open = None
        return [*effects, *self._stop(Stopped.INTERRUPTED, "")]

    def _stop_after_round(self, event: StopRequested, now: float) -> list[Effect]:
        self._stops_after_round = True
        return self._advance(now)

    def _suspend(self, event: Suspended, now: float) -> list[Effect]:
        """End this process but not the work of the devices: a standby goes on, or the state could not be saved.

        The next process publishes the model again, which this one clears when it closes.
        """
        pause = [] if self.open is None else [SaveSpentTime(self.open.spent_s(now))]
        self.open = None
        self.stopped = Stopped.INTERRUPTED if event.handed_over else Stopped.FAILED
        return [*pause, EndRun(self.stopped, "")]

    # --- the state of the run, for status ---

    def next_deadline(self) -> float | None:
        """Return the time at which the event TimePassed is due; None if there is none."""
        if self.stopped:
            return None
        if self.open is not None:
            return self.open.next_deadline()
        return earliest(self._wait.looks_at, self._ends_at, self._pace.wakes_at, self.fleet.next_pause_end())

    def eta_s(self, now: float) -> float | None:
        """Return the expected seconds to the quorum, by earlier rounds; None without them or without an open round."""
        if not self._quorum_seconds or self.open is None:
            return None
        return max(0.0, statistics.median(self._quorum_seconds[-10:]) - self.open.round.elapsed_s(now))

    def pause_s(self, now: float) -> float:
        """Return the seconds until the next round may begin; 0 while one is open."""
        return 0.0 if self.open is not None else self._pace.left_s(now)

    def wait_s(self, now: float) -> float:
        """Return the seconds for which the run waits for devices at most; 0 if it does not wait."""
        looks_at = self._wait.looks_at
        return 0.0 if self.open is not None or looks_at is None else max(0.0, looks_at - now)

    @property
    def last_round(self) -> int:
        """The number of the last round that began; `first_round` - 1 if no round has begun."""
        if self.open is not None:
            return self.open.round.number
        return self.records[-1].round if self.records else self.spec.first_round - 1

    @property
    def present(self) -> int:
        """The number of devices that count and can be invited to the next round, and of devices whose update waits for it."""
        return self._size.present(self.last_round + 1)

    @property
    def rounds_in_all(self) -> int:
        """The number of the last round of the run, as far as is known; evaluate rounds have numbers too."""
        return self.spec.rounds + self._evaluations.expected

    @property
    def evaluates_next(self) -> bool:
        """True if the open round, or else the next one, is an evaluate round.

        That is once after `evaluate_every` training rounds, failed ones included; `fedpatch evaluate` has no other round.
        """
        if self.open is not None:
            return self.open.evaluates
        return self._unfinished is None and self._evaluations.is_next(self.last_round - self._evaluations.number)

    def note_restarted(self, devices: Iterable[str]) -> None:
        """Let restarted devices be drawn for the next round, even if they are absent."""
        for device in devices:
            self._absences.restarted(device)

    def required_devices(self) -> int:
        """Return the number of devices that must be `present` before the next round: a quorum, or all for the first one."""
        return self._size.required(self.last_round + 1, evaluates=self.evaluates_next, first=self._wait.first)

    @property
    def _ends_at(self) -> float | None:
        return None if self.spec.time_limit_s is None else self._started_at + self.spec.time_limit_s

    _HANDLERS: Mapping[type[Event], Callable[[Engine, Any, float], list[Effect]]] = {
        RunStarted: _start,
        DevicePresence: _on_presence,
        DeviceMessage: _on_message,
        ChunkReceived: _on_chunk,
        TimePassed: _on_time,
        LinkChanged: _on_link,
        HoldsChanged: _on_holds,
        DevicesRevoked: _on_revoked,
        Interrupted: _interrupt,
        StopRequested: _stop_after_round,
        Suspended: _suspend,
        ModelPublished: _on_model_published,
        UpdateStored: _on_update_stored,
        UpdateRejected: _on_update_rejected,
        Aggregated: _on_aggregated,
    }


def drive_engine(engine: Engine, effects: Iterable[Effect], handler: EffectHandler, clock: Callable[[], float]) -> None:
    """Run effects in order, and the effects that follow from their completion events.

    Args:
        engine: Handles each completion event before the handler continues.
        effects: Effects of an event that the engine has handled.
        clock: Returns the run's time, in seconds, for completion events.
    """
    queue = deque(effects)
    while queue:
        for event in handler.run_effect(queue.popleft()):
            queue.extend(engine.handle(event, clock()))
