"""The messages of an open round: invitations, answers, uploads and reports, as effects.

`ActiveRound` adds messages to the state machine of coordinator.rounds.round_phases: invitations, the upload scheduler, the
reports of the devices and the detection of silent devices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedpatch.coordinator.aggregation.received_update_checks import check_offer
from fedpatch.coordinator.aggregation.registered_counts import check_members
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.buffered.speed_classes import SpeedClasses
from fedpatch.coordinator.cohort.exclusion import excludes
from fedpatch.coordinator.masking.masked_groups import RunGroups
from fedpatch.coordinator.rounds.asked_after_decline import lasts
from fedpatch.coordinator.rounds.decline_hints import hint_for, word_of
from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.held_devices import QUARANTINED
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.link_check import DeadLinkCheck
from fedpatch.coordinator.rounds.masked_round import NO_KEYS, OTHER_KEYS, MaskedRound
from fedpatch.coordinator.rounds.masked_terms import relays_of_sums, save_terms, terms_of
from fedpatch.coordinator.rounds.missed_participants import MissedParticipants, missed_participants
from fedpatch.coordinator.rounds.participant_transitions import AT_WORK, EVENT_OF_JOB, ParticipantEvent, Phase, State
from fedpatch.coordinator.rounds.repeated_requests import RepeatedRequests
from fedpatch.coordinator.rounds.round_journal import (
    CommittedUpdate,
    RoundJournal,
    RoundStart,
)
from fedpatch.coordinator.rounds.round_pace import rest_of_interval
from fedpatch.coordinator.rounds.round_phases import (
    Round,
)
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic, build_record, mean_accuracy
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CountEvent,
    Effect,
    ExcludeDevice,
    MaskedOrigin,
    SaveJournal,
    StoreUpdate,
)
from fedpatch.coordinator.rounds.run_events import Aggregated, ModelPublished
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.unresponsive_devices import (
    SILENT,
    UnresponsiveDevices,
)
from fedpatch.coordinator.rounds.upload_scheduler import UPLOAD_IDLE_S, Complete, UploadScheduler
from fedpatch.coordinator.rounds.work_requests import Invitations
from fedpatch.shared.deadlines import earliest
from fedpatch.shared.errors import IllegalTransition, UpdateRefused, WireError
from fedpatch.shared.masking.group_context import request_digest
from fedpatch.shared.masking.revocation import RevocationList
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Cancel,
    Committed,
    Decline,
    DeviceState,
    Envelope,
    Evaluation,
    Failed,
    Need,
    Offer,
    Progress,
    Refused,
    UpdateReport,
)
from fedpatch.shared.wire.reason_codes import RefuseReason


class ActiveRound:
    """The open round of a run, from its selection to the last report.

    Args:
        spec: The terms of the run, with the policy of this round.
        opening: A new round, or the journal and the committed updates of a continued round.
        fleet: The known devices.
        envelopes: Makes the envelopes.
        jitter: Randomness of retry times.
        limit_s: The rest of the run's time limit, in seconds; None without a limit.
        now: The time, in seconds.
        uploads: The upload slots of a run with buffered rounds, which outlast a round; None: the round has its own.
        groups: The masked groups of the run; None in a run without masks.
        speeds: The training times of the devices, which the round adds to; None in a run without buffered rounds.

    Attributes:
        round: The state machine.
        link_check: The check of the link to the broker before recruiting fails; its `due` is asked before `tick`.
        reports: Reports of committed updates by device; None for masked ones.
        masked: The groups of a masked round, once the model is published; None without masks.
        figures: Figures of a masked round, once it is aggregated.
        evaluates: Whether devices only measure.
        dismissed: Whether collecting has ended and working devices were cancelled.
        works: Carried work of participants whose request is of an earlier round.
        version: Completed rounds of the round's model, once it is published.
        absentees: Once `dismissed` is true, the participants that missed the round.
    """

    def __init__(  # noqa: PLR0913 - what outlasts a round
        self,
        spec: RunSpec,
        opening: RoundStart,
        fleet: Fleet,
        envelopes: EnvelopeFactory,
        jitter: random.Random,
        limit_s: float | None,
        now: float,
        uploads: UploadScheduler | None = None,
        groups: RunGroups | None = None,
        speeds: SpeedClasses | None = None,
    ) -> None:
        journal = opening.journal
        deadline_s = min(spec.policy.deadline_s, math.inf if limit_s is None else journal.spent_s + limit_s)
        self.round = Round(journal.round, replace(spec.policy, target=journal.target, deadline_s=deadline_s), now)
        self.link_check = DeadLinkCheck(self.round)
        self.reports: dict[str, UpdateReport | None] = {}
        self.masked: MaskedRound | None = None
        self.dismissed = False
        self.works: dict[str, CarriedWork] = {}
        self.version = 0
        self.absentees = MissedParticipants()
        self.offenders: dict[str, str] = dict(journal.offenders)
        self.evaluates = journal.evaluates
        self._aggregated = Aggregated()
        self._groups = groups or RunGroups(spec.seed)
        self._speeds = speeds
        self._spec = spec
        self._opening = opening
        self._fleet = fleet
        self._envelopes = envelopes
        self._uploads = uploads or new_scheduler(spec, jitter)
        self._invitations: Invitations | None = None
        self._repeats = RepeatedRequests(now, evaluates=journal.evaluates)
        self._refused: dict[str, int] = {}
        self._bytes_up = 0
        self._unresponsive = UnresponsiveDevices(now)
        self._groups_damaged = False
        # Whether the aggregation was requested.
        self._aggregates = False

    def begin(self, published: ModelPublished, now: float) -> list[Effect]:
        """Invite the devices that have not reported, once the model is published.

        Args:
            published: The global model and the deltas. A continued round keeps the masked terms that it began with.
            now: The time, in seconds.

        Returns:
            The effects: the journal first, then the invitations.
        """
        self.version = published.version
        known, updates = self._opening.journal, self._opening.updates
        terms = terms_of(self._spec.secure, published.secure, self._opening, self._fleet)
        sums = relays_of_sums(self._opening, self._fleet)
        revoked = self._spec.secure.revocations() if self._spec.secure is not None and terms is not None else None
        self._invitations = Invitations(self._spec, self._fleet, known, published, now, terms, sums, revoked)
        if terms is not None:
            known = self._resume_groups(known, terms, sums, now, revoked)
        # Waiting updates count as expected until they are admitted, so that a round without invitations does not end.
        waiting = {device: update for device, update in updates.items() if update.work is not None}
        self.round.expected += len(waiting)
        if known.base:
            self.round.resume(known, updates.keys() - waiting.keys(), now)
        else:
            self.round.begin(known.invited, now, known.absent)
        if self._groups_damaged and not self.round.over:
            self.round.abandon(now, "groups_lost")
        for device, update in updates.items():
            self.reports[device] = update.report
            self._envelopes.committed[device] = update.digest
            self._bytes_up += update.size_bytes
        self._unresponsive = UnresponsiveDevices(now)
        counts: list[Effect] = [] if known.base else [CountEvent(device, "invited") for device in known.invited]
        out = [device for device in self.round.devices(*AT_WORK) if self._fleet.held(device) == QUARANTINED]
        counts += [one for device in out for one in self.expel(device, now, QUARANTINED)]
        journal = replace(self._invitations.with_encodings(known), spent_s=self.round.spent_s(now))
        measures = self._invitations.common_request.measure_independent
        saved = save_terms(terms, self._opening, sums, measures=measures)
        saves = [] if self.evaluates else [SaveJournal(journal)]
        effects = [*saves, *saved, *counts, *self.ask(self.round.devices(*AT_WORK), now)]
        for device, update in waiting.items():
            assert update.work is not None
            self.works[device] = update.work
            self.round.admit(device, now, reported=True)
        self.round.expected -= len(waiting)
        return effects

    def admit(self, device: str, work: CarriedWork, now: float) -> None:
        """Take in a device that offers the update of an earlier round, or was uploading it when that round ended.

        Args:
            device: The device, which is no participant.
            now: The time, in seconds.
        """
        self.works[device] = work
        self.round.admit(device, now)
        self._unresponsive.note_message(device, now)

    def expect(self, devices: int, now: float) -> None:
        """Expect the updates of devices that work for earlier rounds and have not offered them yet.

        Args:
            devices: The number of these devices.
            now: The time, in seconds.
        """
        self.round.expected = devices
        self.round.tick(now)

    def staleness(self, device: str) -> int:
        """Return the number of versions from the base of a participant's update to the round's model."""
        work = self.works.get(device)
        return 0 if work is None else self.version - work.version

    def takes(self, device: str) -> bool:
        """Return whether the round accepts updates, and the device is not a participant yet."""
        return self.round.phase in (Phase.RECRUITING, Phase.COLLECTING) and device not in self.round.participants

    def work_left(self) -> dict[str, CarriedWork]:
        """Return the work that the next round may take, at the end of this one."""
        return {device: self._work_of(device) for device in self.round.carried()}

    def committed_work(self) -> dict[str, CommittedUpdate]:
        """Return the committed updates, for the round after a failed one."""
        digests = self._envelopes.committed
        return {
            device: CommittedUpdate(digests[device], 0, report, self._work_of(device))
            for device, report in self.reports.items()
        }

    def _work_of(self, device: str) -> CarriedWork:
        """Return the work of a participant, even if its request is of this round."""
        if device in self.works:
            return self.works[device]
        invitations = self._issued_invitations
        number, epoch = self.round.number, self._spec.epoch
        return CarriedWork(number, epoch, self.version, invitations.model.digest, invitations.encoding(device))

    def spent_s(self, now: float) -> float:
        """Return the seconds of the deadline that have passed, also before the model is published."""
        return self.round.spent_s(now) + (self._opening.journal.spent_s if self._invitations is None else 0.0)

    def on_message(self, device: str, body: Body, now: float) -> list[Effect]:
        """Handle a message of this round.

        Args:
            device: The sender, a participant.
            now: The time, in seconds.
        """
        self._unresponsive.note_message(device, now)
        if self.masked is not None and (answer := self.masked.on_message(device, body)) is not None:
            return answer
        if device in self.works and isinstance(body, Need):
            # The device has lost its work, and begins again with a model that is not published any more.
            return [*self.expel(device, now, "stale", leaves=False), self._send(device, Cancel("stale"))]
        if isinstance(body, Progress | Offer):
            self.round.take_back(device)
        return self._on_body(device, body, now)

    def _on_body(self, device: str, body: Body, now: float) -> list[Effect]:
        state = self.round.participants[device].state
        if state not in AT_WORK and isinstance(body, Accept | Progress | Need):
            # The round no longer waits for this device, but the device still works for it.
            return [self._send(device, Cancel(state))]
        match body:
            case Accept():
                return self._accepted(device, body, now)
            case Decline():
                return self._declined(device, body, now)
            case Progress():
                return self._progress(device, body, now)
            case Offer() if not self.evaluates:
                return self._offered(device, body, now)
            case Need():
                return self.resend(body, now)
            case Evaluation() if self.evaluates:
                return self._evaluated(device, body, now)
            case Failed():
                self._uploads.release(device)
                failed = self.round.handle(device, ParticipantEvent.FAIL, now, word_of(body))
                return [CountEvent(device, "failed", word_of(body), hint_for(body))] if failed else []
            case _:
                return []

    def _evaluated(self, device: str, body: Evaluation, now: float) -> list[Effect]:
        """Count the measurement of a device. Measurements of another model are ignored; impossible values fail the device."""
        value, members = body.user_accuracy, body.members or 1
        if body.base != self._issued_invitations.model.digest:
            return []
        if value is not None and not self._spec.metric.allows(value):
            return self.expel(device, now, RefuseReason.OUT_OF_RANGE, leaves=False)
        try:
            check_members(members, self._fleet.members_of(device), self._spec.limits.max_members)
        except UpdateRefused as error:
            return self.expel(device, now, error.reason, leaves=False)
        if not self.round.handle(device, ParticipantEvent.REPORT, now):
            return []
        report = UpdateReport(body.base, body.num_examples, 0, 0.0, value, None, 0.0, body.seconds)
        self.reports[device] = replace(report, members=members)
        return [CountEvent(device, "reported")]

    def awaits(self, device: str, envelope: Envelope) -> bool:
        """Return whether a message of an earlier epoch belongs to this round and its sender has not reported yet."""
        return self.round.awaits(device) and envelope.round == self.round.number

    def ask(self, devices: list[str], now: float) -> list[Effect]:
        """Send the work request, for the first time or again; a working device ignores a repeated request."""
        self._repeats.note_requests(now)
        return [self._request_to(device, now) for device in devices]

    def on_chunk(self, device: str, chunk: Chunk, now: float) -> list[Effect]:
        """Handle a chunk of a participant's update.

        Args:
            now: The time, in seconds.
        """
        self._bytes_up += len(chunk.data)
        self._unresponsive.note_message(device, now)
        if not self.round.awaits(device):
            # The device was lost for too long, or has failed: the round no longer waits for it.
            self._uploads.release(device)
            return []
        answer = self._uploads.chunk(device, chunk, now)
        if answer is None:
            return []
        if not isinstance(answer, Complete):
            return [self._send(device, answer)]
        if not answer.intact:
            return self.refuse(device, answer.manifest.digest, RefuseReason.DAMAGED, "SHA-256 differs", now)
        group = self.masked.group_of(device) if self.masked is not None else None
        context = b"" if group is None else group.context
        masked = None if self.masked is None else MaskedOrigin(context, self.masked.terms)
        work = self.works.get(device)
        return [StoreUpdate(self.round.number, device, answer.manifest, answer.blob, masked, work)]

    def on_presence(self, device: str, known_boot: str, state: DeviceState, now: float) -> list[Effect]:
        """Handle a participant that has disconnected, restarted, or returned.

        Args:
            known_boot: Its boot nonce before this presence; "" if it is unknown.
            state: Its presence.
            now: The time, in seconds.
        """
        if device not in self.round.participants:
            return []
        if not state.online:
            self._uploads.suspend(device)
            return (
                [CountEvent(device, "lost")] if self.round.handle(device, ParticipantEvent.VANISH, now, "lost") else []
            )
        self._unresponsive.note_message(device, now)
        if device in self.works:
            return self._carrier_is_back(device, known_boot, state, now)
        job, participant = state.job, self.round.participants[device]
        if job is not None and (job.run, job.round) == (self._spec.run, self.round.number):
            self.round.take_back(device)
        effects: list[Effect] = []
        ours = (self._spec.run, self._spec.epoch, self.round.number)
        if job is not None and (job.run, job.epoch, job.round) == ours:
            effects += self._seen(device, EVENT_OF_JOB[job.phase], now)
        else:
            # The device is invited until it answers. A retained presence may be older than its job; the answer shows the job.
            self.round.handle(device, ParticipantEvent.RESTART, now)
            if state.boot != known_boot:
                self._uploads.release(device)
                if known_boot:
                    self._issued_invitations.restarted(device)
        # A working device ignores a repeated request; a device that has lost the request needs it.
        reminders = self.masked.remind(device) if self.masked is not None else []
        return [*effects, *([self._request_to(device, now)] if participant.state in AT_WORK else []), *reminders]

    def _carrier_is_back(self, device: str, known_boot: str, state: DeviceState, now: float) -> list[Effect]:
        """Handle the presence of a device with carried work: it offers its update again, or has lost it."""
        job, work = state.job, self.works[device]
        if job is not None and (job.run, job.round) == (self._spec.run, work.round):
            self.round.take_back(device)
            return self._seen(device, ParticipantEvent.TRAIN, now)
        if state.boot in (known_boot, ""):
            return []
        return self.expel(device, now, "restarted", leaves=False)

    def expel(self, device: str, now: float, why: str = "revoked", *, leaves: bool = True) -> list[Effect]:
        """Exclude a device from the round; an update that is committed counts.

        Args:
            now: The time, in seconds.
            why: The reason, for the record.
            leaves: Whether the device leaves the count of the round.
        """
        self._uploads.release(device)
        return (
            [CountEvent(device, "failed", why, leaves=leaves)]
            if self.round.handle(device, ParticipantEvent.FAIL, now, why, leaves=leaves)
            else []
        )

    def stored(self, device: str, digest: str, report: UpdateReport | None, now: float) -> list[Effect]:
        """Count a stored update, and send `committed`. Other updates never get `committed`: it is a promise.

        Args:
            digest: SHA-256 of its packed update.
            report: Its report; None for a masked update.
            now: The time, in seconds.
        """
        if not self.round.handle(device, ParticipantEvent.REPORT, now):
            if self._envelopes.committed.get(device) == digest:
                return [self._send(device, Committed(digest))]
            return self.refuse(device, digest, RefuseReason.LATE, "the round went on without this device", now)
        self._uploads.release(device)
        self._envelopes.committed[device] = digest
        self.reports[device] = report
        if self._speeds is not None and report is not None:
            self._speeds.note(device, report.train_s)
        self._fleet.works(device)
        rest_s = rest_of_interval(self._spec.round_interval_s, self.round.spent_s(now))
        return [self._send(device, Committed(digest, rest_s)), CountEvent(device, "reported")]

    def refuse(self, device: str, digest: str, reason: RefuseReason, detail: str, now: float) -> list[Effect]:
        """Refuse an update. The device counts as failed; after an offence the run does not invite it again.

        Args:
            digest: SHA-256 of its packed update.
            detail: Details for the device and the record.
            now: The time, in seconds.
        """
        self._refused[reason] = self._refused.get(reason, 0) + 1
        self._uploads.release(device)
        refused = CountEvent(device, "refused", reason, detail)
        excluded: list[Effect] = []
        if excludes(reason):
            self.offenders[device] = reason
            self._fleet.exclude_offender(device, reason)
            excluded = [ExcludeDevice(device, reason)]
        self.round.handle(device, ParticipantEvent.FAIL, now, reason, leaves=bool(excluded))
        return [*excluded, self._send(device, Refused(digest, reason.on_the_wire, detail[:500])), refused]

    def grant(self, now: float) -> list[Effect]:
        """Grant free upload slots; at the quorum, probe the working devices."""
        grants = [self._send(device, grant) for device, grant in self._uploads.next_grants(now)]
        if not self._repeats.asks_at_quorum(self.round):
            return grants
        return [*grants, *self._probe(self.round.devices(State.INVITED, State.ACCEPTED, State.TRAINING), now)]

    def tick(self, now: float, *, connected: bool = True) -> list[Effect]:
        """Check the deadlines, invite again the devices without an answer, and probe the silent ones."""
        self.listen(connected=connected, now=now)
        self.round.tick(now)
        if self._invitations is None:
            return []
        effects = self.ask(self.round.devices(State.INVITED) if connected and self._repeats.reinvites(now) else [], now)
        effects += self.masked.tick(now, connected=connected) if self.masked is not None else []
        if not self._repeats.probes(now):
            return effects
        at_work = self.round.devices(State.ACCEPTED, State.TRAINING) if connected else []
        effects += self._probe(self._unresponsive.to_probe(at_work, now), now)
        return [*effects, *(self._give_up_silent(now) if connected else [])]

    def listen(self, *, connected: bool, now: float) -> None:
        """Note the state of the link to the broker."""
        self._unresponsive.note_link(now, connected=connected)

    def next_deadline(self) -> float | None:
        """Return the next time at which `tick` or `grant` may have an effect."""
        repeat_at = self._repeats.next_deadline(self.round, begun=self._invitations is not None)
        masked_at = self.masked.next_deadline() if self.masked is not None else None
        return earliest(self.round.next_deadline(), self._uploads.next_deadline(), repeat_at, masked_at)

    def advance_masking(self, now: float) -> list[Effect]:
        """Return the effects of the next step of a masked round; called after every event."""
        masked = self.masked
        if masked is None:
            return []
        effects = masked.advance(now)
        if self.round.phase is Phase.UNMASKING and not self.dismissed:
            unmasks = masked.end_collecting(self.reports, now)
            effects += [*self.dismiss(), *unmasks]
        if self.round.phase is Phase.UNMASKING and (masked.settled or now >= self.round.unmasking_ends_at):
            effects += masked.end_unmasking(now)
            self.absentees = self.absentees.with_silent(masked.silent)
            counted = set(self.round.devices(State.REPORTED))
            self.reports = {device: report for device, report in self.reports.items() if device in counted}
        return effects

    def aggregate(self) -> list[Effect]:
        """Return, once, the effects that end collecting and aggregate the updates that count."""
        if self._aggregates:
            return []
        self._aggregates = True
        groups = self.masked.results() if self.masked is not None else ()
        terms = self.masked.terms if self.masked is not None else None
        sums = sorted(self.masked.sums & self.reports.keys()) if self.masked is not None else ()
        works = {device: self.works[device] for device in sorted(self.reports.keys() & self.works.keys())}
        devices = tuple(sorted(self.reports))
        cancels = [] if self.dismissed else self.dismiss()
        return [*cancels, AggregateUpdates(self.round.number, devices, groups, terms, tuple(sums), works)]

    def aggregated(self, event: Aggregated, now: float) -> None:
        """Close the round once the next global model is computed.

        The round fails if groups had an impossible sum, and the other updates are fewer than the quorum.

        Args:
            event: The completion, with the devices of these groups, whose reports do not count.
            now: The time, in seconds.
        """
        self._aggregated = event
        self.reports = {device: report for device, report in self.reports.items() if device not in event.left_out}
        if event.left_out and len(self.reports) < self.round.needed:
            self.round.abandon(now, "groups_lost")
        else:
            self.round.finish(now)

    def publishes(self, digest: str) -> bool:
        """Return whether a blob is the round's model or one of its deltas."""
        return self._invitations is not None and self._invitations.publishes(digest)

    def resend(self, need: Need, now: float) -> list[Effect]:
        """Return the effect that publishes a device's missing chunks again, if they are due."""
        return self._issued_invitations.resend_due(need, now, self.round.count(State.INVITED, State.ACCEPTED))

    def dismiss(self) -> list[Effect]:
        """End collecting: cancel the devices that are still working."""
        self.dismissed = True
        participants = self.round.participants
        self.absentees = missed_participants(self.round, self.masked, self._uploads, self._unresponsive)
        carried = set(self.round.carried())
        if self.round.policy.carries:
            for device in participants.keys() - carried:
                self._uploads.release(device)
        else:
            self._uploads.clear()
        return [
            self._send(device, Cancel("late")) for device in self.round.devices(State.LATE) if device not in carried
        ]

    @property
    def members(self) -> dict[str, int]:
        """The number of devices whose mean an update is, by reporting device, if more than one."""
        known = ((device, report.members) for device, report in self.reports.items() if report is not None)
        return {device: count for device, count in known if count > 1}

    def user_accuracy(self) -> float | None:
        """Return the mean user accuracy of the reports before local training (paper, section 4.2); None without any."""
        reports = [report for report in self.reports.values() if report is not None]
        return mean_accuracy((report.user_accuracy_before, report.members) for report in reports)

    def traffic(self) -> RoundTraffic:
        """Return the bytes that have travelled so far."""
        if self._invitations is None:
            return RoundTraffic(0, self._bytes_up)
        own = [device for device in self.round.had_model() if device not in self.works]
        downloads = [self._invitations.size_bytes(device) for device in own]
        return RoundTraffic(sum(downloads), self._bytes_up, len(downloads))

    def record(self, outcome: str) -> RoundRecord:
        """Return the record of the round with its outcome."""
        record = build_record(
            self.round,
            outcome,
            self.reports,
            self.traffic(),
            self._refused,
            metric=self._spec.metric,
            figures=self._aggregated.figures,
        )
        if self.evaluates:
            return replace(record, train_loss=None)
        return replace(
            record,
            bounded=dict(self._aggregated.bounded),
            bounded_devices=dict(self._aggregated.bounded_devices),
            pulls=dict(self._aggregated.pulls),
            pull_quantiles=dict(self._aggregated.pull_quantiles),
            privacy=dict(self._aggregated.privacy),
            offenders=dict(sorted(self.offenders.items())),
        )

    def _probe(self, devices: Sequence[str], now: float) -> list[Effect]:
        """Send the request again; a working device answers it at once."""
        self._unresponsive.note_request(devices, now)
        return [self._request_to(device, now) for device in devices]

    def _give_up_silent(self, now: float) -> list[Effect]:
        """Fail the silent devices once the round waits for no other device."""
        awaited = self.round.devices(*AT_WORK) if self.round.phase is Phase.COLLECTING else []
        if not all(self._is_silent(device, now) for device in awaited):
            return []
        return [effect for device in awaited for effect in self.expel(device, now, SILENT, leaves=False)]

    def _is_silent(self, device: str, now: float) -> bool:
        state = self.round.participants[device].state
        size = self._issued_invitations.size_bytes(device) if state is State.ACCEPTED else 0
        starts = self._fleet.is_starting(device)
        return self._unresponsive.is_silent(device, state, now, self._uploads, starts=starts, download_bytes=size)

    def _resume_groups(
        self,
        known: RoundJournal,
        terms: SecureTerms,
        sums: Collection[str],
        now: float,
        revoked: RevocationList | None,
    ) -> RoundJournal:
        """Begin or continue masking; return the journal with its phase. If a saved step is damaged, `begin` fails the round."""
        spec, entries = self._spec, self._opening.masking
        assert spec.secure is not None
        request = request_digest(spec.task, spec.run, known.round, self._issued_invitations.common_request)
        self.masked = MaskedRound(
            self.round, terms, spec.secure, request, self._send, sums, revoked, groups=self._groups
        )
        try:
            self.masked.resume(entries, self._opening.updates, now, closing=known.closing)
        except (WireError, IllegalTransition, LookupError, ValueError):
            # The devices would refuse other groups in this round, but not in the next one.
            self._groups_damaged = True
            return known
        # Saved acceptances have no keys: until the groups are drawn, only relays, which need none, have accepted.
        accepted = known.accepted if self.masked.drawn else known.accepted & self.masked.sums
        return replace(
            known,
            accepted=accepted | self.masked.keys.keys(),
            grouped=self.masked.drawn,
            unmasking=any(entry.step == "reported" for entry in entries),
        )

    @property
    def _issued_invitations(self) -> Invitations:
        assert self._invitations is not None, "the round has no model before `begin`"
        return self._invitations

    def _request_to(self, device: str, now: float) -> Effect:
        patience_s = 0.0
        if (carry := self._spec.carry) is not None:
            # A later round also takes the update, as long as its base is not too old.
            policy = self.round.policy
            patience_s = carry.max_staleness * (policy.deadline_s + policy.grace_s)
        return self._send(device, self._issued_invitations.request(device, self.round.remaining_s(now) + patience_s))

    def _seen(self, device: str, event: ParticipantEvent, now: float) -> list[Effect]:
        """Handle a sign of work. It implies that the device has accepted, even if its acceptance was lost."""
        participant = self.round.participants[device]
        before = participant.accepted
        self.round.handle(device, event, now)
        if event is not ParticipantEvent.ACCEPT and device not in self.works:
            self._issued_invitations.mark_downloaded(device)
        counted = before or device in self._opening.journal.accepted
        return [CountEvent(device, "accepted")] if participant.accepted and not counted else []

    def _accepted(self, device: str, body: Accept, now: float) -> list[Effect]:
        if self.masked is None or device in self.masked.sums:
            return self._seen(device, ParticipantEvent.ACCEPT, now)
        try:
            self.masked.add_keys(device, body.keys)
        except WireError as error:
            return self.masked.leave(device, OTHER_KEYS if self.masked.drawn else NO_KEYS, now, str(error))
        return [*self._seen(device, ParticipantEvent.ACCEPT, now), *self.masked.remind(device)]

    def _declined(self, device: str, body: Decline, now: float) -> list[Effect]:
        self._uploads.release(device)
        if not self.round.handle(device, ParticipantEvent.DECLINE, now, word_of(body), leaves=lasts(body)):
            return []
        return [CountEvent(device, "declined", word_of(body), body.detail, leaves=lasts(body))]

    def _progress(self, device: str, body: Progress, now: float) -> list[Effect]:
        if device in self._fleet.members and body.total:
            self._fleet.members[device].progress = min(1.0, body.done / body.total)
        return self._seen(device, EVENT_OF_JOB[body.phase], now)

    def _offered(self, device: str, offer: Offer, now: float) -> list[Effect]:
        manifest = offer.manifest
        if device in self.reports:
            if self._envelopes.committed.get(device) == manifest.digest:
                return [self._send(device, Committed(manifest.digest))]
            detail = "another update of this round is committed already"
            return [self._send(device, Refused(manifest.digest, RefuseReason.ALREADY_COMMITTED, detail))]
        masks = self.masked is None or self.masked.may_upload(device)
        if not masks or self.round.participants[device].state in (State.LATE, State.DECLINED, State.FAILED):
            refused = Refused(manifest.digest, RefuseReason.LATE, "the round went on without this device")
            return [self._send(device, refused), CountEvent(device, "late", RefuseReason.LATE)]
        spec = self._spec
        try:
            work = self.works.get(device)
            asked = self._issued_invitations.encoding(device) if work is None else work.encoding
            check_offer(manifest, schema=spec.public_schema, encoding=asked, max_bytes=spec.max_blob_bytes)
        except UpdateRefused as error:
            return self.refuse(device, manifest.digest, RefuseReason(error.reason), str(error), now)
        try:
            saved = self.masked.take_codes(device, offer) if self.masked is not None else []
        except WireError as error:
            return self.refuse(device, manifest.digest, RefuseReason.DAMAGED, str(error), now)
        accepted = [*saved, *self._seen(device, ParticipantEvent.OFFER, now)]
        return [*accepted, self._send(device, self._uploads.offer(device, manifest, now))]

    def _send(self, device: str, body: Body) -> Effect:
        work = self.works.get(device)
        if work is not None:
            return self._envelopes.answer_carried(device, work, body)
        return self._envelopes.send(device, self.round.number, body)


def new_scheduler(spec: RunSpec, jitter: random.Random) -> UploadScheduler:
    """Return upload slots by the terms of a run; `jitter` is the randomness of retry times."""
    return UploadScheduler(slots=spec.upload_slots, window=spec.upload_window, idle_s=UPLOAD_IDLE_S, jitter=jitter)
