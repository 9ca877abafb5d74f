"""The messages of a run and of its open round: invitations, answers, uploads and reports, as effects.

It wraps the state machine of coordinator.rounds.round_phases, and adds the model's manifest, upload scheduler and reports.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedpatch.coordinator.aggregation.update_validation import check_offer
from fedpatch.coordinator.cohort.offences import is_offence
from fedpatch.coordinator.cohort.unresponsive_devices import (
    PROBE_S,
    SILENT_S,
    SLOW_BYTES_S,
    STARTING_S,
    UnresponsiveDevices,
)
from fedpatch.coordinator.rounds.invitations import Invitations
from fedpatch.coordinator.rounds.known_devices import QUARANTINED, Fleet, hint_for, lasts, word_of
from fedpatch.coordinator.rounds.participant_transitions import (
    AT_WORK,
    EVENT_OF_JOB,
    Event,
    Phase,
    RoundStart,
    State,
)
from fedpatch.coordinator.rounds.round_phases import NO_ANSWER, Participant, Round
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic, build_record, mean_accuracy
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, SaveJournal, SendMessage, StoreUpdate
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.upload_scheduler import STALL_S, Complete, UploadScheduler
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.wire.chunked_transfer import Chunk
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Cancel,
    Committed,
    Decline,
    DeviceState,
    Envelope,
    Failed,
    Manifest,
    ModelDelta,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    UpdateReport,
)
from fedpatch.shared.wire.reason_codes import FailReason, RefuseReason

# After which a device offers once more what another run may still take.
KEEP_S = 60.0
# A request or its answer may be lost (brokers drop from full queues): ask again while a device has not answered.
REINVITE_S = 3.0
UPLOAD_IDLE_S = 30.0
# Why a participant is given up from which nothing is heard any more (coordinator.cohort.unresponsive_devices).
SILENT = "silent"


class EnvelopeFactory:
    """Numbers the messages of a run, and remembers what each device last had committed.

    `resumable` are the open rounds of other runs that somebody may go on with: what waits for those goes on waiting.
    """

    def __init__(self, spec: RunSpec, resumable: Mapping[str, int] | None = None) -> None:
        self._spec = spec
        self._resumable = resumable or {}
        self._last_id = 0
        self.committed: dict[str, str] = {}

    def send(self, device: str, round_number: int, body: Body) -> SendMessage:
        """A message of a round of this run."""
        spec = self._spec
        return self._numbered(
            device, Envelope(body, task=spec.task, run=spec.run, epoch=spec.epoch, round=round_number)
        )

    def answer_stale(self, device: str, envelope: Envelope, reason: RefuseReason) -> list[Effect]:
        """Closes what a device still believes to be open, in the terms of its own message, so that it can forget it."""
        match envelope.body:
            case Offer(manifest=manifest) if self.committed.get(device) == manifest.digest:
                return [self._numbered(device, replace(envelope, body=Committed(manifest.digest)))]
            case Offer(manifest=manifest) if self._resumable.get(envelope.run) == envelope.round:
                return [self._numbered(device, replace(envelope, body=RetryAfter(manifest.digest, KEEP_S)))]
            case Offer(manifest=manifest):
                answer: Body = Refused(manifest.digest, reason, "the round is over for this device")
            case Accept() | Progress() | Need():
                answer = Cancel(reason)
            case _:
                return []
        return [self._numbered(device, replace(envelope, body=answer)), CountEvent(device, "late", reason)]

    def answer_quarantined(self, device: str, envelope: Envelope) -> list[Effect]:
        """Of a device in quarantine nothing is taken. `cancel` is for one that does not know that reason to refuse."""
        reason = RefuseReason.QUARANTINED
        answers: list[Body] = []
        match envelope.body:
            case Offer(manifest=manifest):
                answers = [Refused(manifest.digest, reason, "the coordinator's operator can release this device")]
                answers.append(Cancel(reason))
            case Accept() | Progress() | Need():
                answers = [Cancel(reason)]
        sends = [self._numbered(device, replace(envelope, body=answer)) for answer in answers]
        return [*sends, CountEvent(device, "refused", reason)]

    def _numbered(self, device: str, envelope: Envelope) -> SendMessage:
        self._last_id += 1
        return SendMessage(device, replace(envelope, id=self._last_id))


class ActiveRound:
    """From selection to the last report. `limit_s` is what the run's own time limit leaves for it.

    Once it is dismissed, `missed` are the participants that coordinator.rounds.missed_rounds is to count.
    """

    def __init__(
        self,
        spec: RunSpec,
        opening: RoundStart,
        fleet: Fleet,
        post: EnvelopeFactory,
        jitter: random.Random,
        limit_s: float | None,
        now: float,
    ) -> None:
        ledger = opening.ledger
        deadline_s = min(spec.policy.deadline_s, math.inf if limit_s is None else ledger.spent_s + limit_s)
        self.round = Round(ledger.round, replace(spec.policy, target=ledger.target, deadline_s=deadline_s), now)
        self.reports: dict[str, UpdateReport] = {}
        self.dismissed = False
        self.missed: list[str] = []
        self.bounded: dict[str, int] = {}
        self.offenders: dict[str, str] = dict(ledger.offenders)
        self.bounded_devices: dict[str, Sequence[str]] = {}
        self._spec = spec
        self._opening = opening
        self._fleet = fleet
        self._post = post
        self._uploads = UploadScheduler(
            slots=spec.upload_slots, window=spec.upload_window, idle_s=UPLOAD_IDLE_S, jitter=jitter
        )
        self._asking: Invitations | None = None
        self._invite_at = now
        self._refused: dict[str, int] = {}
        self._bytes_up = 0
        self._listen_at = now + PROBE_S
        self._silence = UnresponsiveDevices(now)
        self._probed_at_quorum = False

    def begin(self, model: Manifest, now: float, deltas: Sequence[ModelDelta] = ()) -> list[Effect]:
        """The global model lies on the broker: keep the ledger, and ask everybody who has not reported."""
        known, updates = self._opening.ledger, self._opening.updates
        self._asking = Invitations(self._spec, self._fleet, known, model, deltas, now)
        if known.base:
            self.round.take_up(known, updates, now)
        else:
            self.round.begin(known.invited, now, known.absent)
        for device, update in updates.items():
            self.reports[device] = update.report
            self._post.committed[device] = update.digest
            self._bytes_up += update.size_bytes
        self._silence = UnresponsiveDevices(now)
        counts: list[Effect] = [] if known.base else [CountEvent(device, "invited") for device in known.invited]
        out = [device for device in self.round.devices(*AT_WORK) if self._fleet.held(device) == QUARANTINED]
        counts += [one for device in out for one in self.expel(device, now, QUARANTINED)]
        ledger = replace(self._asking.with_encodings(known), spent_s=self.round.spent_s(now))
        return [SaveJournal(ledger), *counts, *self.ask(self.round.devices(*AT_WORK), now)]

    def spent_s(self, now: float) -> float:
        """Seconds of the deadline that have passed, also before the model is published."""
        return self.round.spent_s(now) + (self._opening.ledger.spent_s if self._asking is None else 0.0)

    def on_message(self, device: str, body: Body, now: float) -> list[Effect]:
        """A message of this very round from one of its participants."""
        self._silence.note_message(device, now)
        state = self.round.participants[device].state
        if state not in AT_WORK and isinstance(body, Accept | Progress | Need):
            # It works for nothing: the round went on without it, and it has not heard.
            return [self._send(device, Cancel(state))]
        match body:
            case Accept():
                return self._seen(device, Event.ACCEPT, now)
            case Decline():
                return self._declined(device, body, now)
            case Progress():
                return self._progress(device, body, now)
            case Offer():
                return self._offered(device, body.manifest, now)
            case Need():
                return self._known.resend_due(body, now, self.round.count(State.INVITED, State.ACCEPTED))
            case Failed():
                self._uploads.release(device)
                failed = self.round.handle(device, Event.FAIL, now, word_of(body))
                return [CountEvent(device, "failed", word_of(body), hint_for(body))] if failed else []
            case _:
                return []

    def awaits(self, device: str, envelope: Envelope) -> bool:
        """Whether a message of an earlier epoch is about this round, of a device that has still to report."""
        return self.round.awaits(device) and envelope.round == self.round.number

    def ask(self, devices: list[str], now: float) -> list[Effect]:
        """The request, for the first time or once more: harmless to a device that is on it."""
        if now >= self._invite_at:
            self._invite_at = now + REINVITE_S
        return [self._request_to(device, now) for device in devices]

    def on_chunk(self, device: str, chunk: Chunk, now: float) -> list[Effect]:
        """A chunk of a participant's update."""
        self._bytes_up += len(chunk.data)
        self._silence.note_message(device, now)
        if not self.round.awaits(device):
            # Lost for too long, or given up: the round has counted it out.
            self._uploads.release(device)
            return []
        answer = self._uploads.chunk(device, chunk, now)
        if answer is None:
            return []
        if not isinstance(answer, Complete):
            return [self._send(device, answer)]
        if not answer.intact:
            return self.refuse(device, answer.manifest.digest, RefuseReason.DAMAGED, "SHA-256 differs", now)
        return [StoreUpdate(self.round.number, device, answer.manifest, answer.blob)]

    def on_presence(self, device: str, known_boot: str, state: DeviceState, now: float) -> list[Effect]:
        """A participant is gone, restarted, or back at work."""
        if device not in self.round.participants:
            return []
        if not state.online:
            self._uploads.suspend(device)
            return [CountEvent(device, "lost")] if self.round.handle(device, Event.VANISH, now, "lost") else []
        self._silence.note_message(device, now)
        job, participant = state.job, self.round.participants[device]
        effects: list[Effect] = []
        ours = (self._spec.run, self._spec.epoch, self.round.number)
        if job is not None and (job.run, job.epoch, job.round) == ours:
            effects += self._seen(device, EVENT_OF_JOB[job.phase], now)
        else:
            # Asked until it answers. A retained presence may be older than its job: then the answer says so.
            self.round.handle(device, Event.RESTART, now)
            if state.boot != known_boot:
                self._uploads.release(device)
                if known_boot:
                    self._known.restarted(device)
        # The same request again is harmless to a device that is on it, and a second chance for one that lost it.
        return [*effects, self._request_to(device, now)] if participant.state in AT_WORK else effects

    def expel(self, device: str, now: float, why: str = "revoked", *, leaves: bool = True) -> list[Effect]:
        """It may work no more; what it delivered before counts. With `leaves` the round is not meant for it any more."""
        self._uploads.release(device)
        return (
            [CountEvent(device, "failed", why)]
            if self.round.handle(device, Event.FAIL, now, why, leaves=leaves)
            else []
        )

    def stored(self, device: str, digest: str, report: UpdateReport, now: float) -> list[Effect]:
        """An update is durable: count it once, and say so. `committed` is a promise: only what counts has it."""
        if not self.round.handle(device, Event.REPORT, now):
            if self._post.committed.get(device) == digest:
                return [self._send(device, Committed(digest))]
            return self.refuse(device, digest, RefuseReason.LATE, "the round went on without this device", now)
        self._uploads.release(device)
        self._post.committed[device] = digest
        self.reports[device] = report
        self._fleet.works(device)
        rest_s = max(0.0, self._spec.round_interval_s - self.round.spent_s(now))
        return [self._send(device, Committed(digest, rest_s)), CountEvent(device, "reported")]

    def refuse(self, device: str, digest: str, reason: RefuseReason, detail: str, now: float) -> list[Effect]:
        """An update is not acceptable: the device is told, and counted as failed; an offender is not asked again in the run."""
        self._refused[reason] = self._refused.get(reason, 0) + 1
        self._uploads.release(device)
        refused = CountEvent(device, "refused", reason, detail)
        if offends := is_offence("refused", reason):
            self.offenders[device] = reason
            self._fleet.bench(device, reason)
        self.round.handle(device, Event.FAIL, now, reason, leaves=offends)
        return [self._send(device, Refused(digest, reason, detail[:500])), refused]

    def grant(self, now: float) -> list[Effect]:
        """Hands free upload slots to those who wait; once the quorum is met, asks those at work whether they are there."""
        grants = [self._send(device, grant) for device, grant in self._uploads.next_grants(now)]
        if self._probed_at_quorum or self.round.quorum_s is None or self.round.phase is not Phase.COLLECTING:
            return grants
        self._probed_at_quorum = True
        return [*grants, *self._probe(self.round.devices(State.INVITED, State.ACCEPTED, State.TRAINING), now)]

    def tick(self, now: float, *, connected: bool = True) -> list[Effect]:
        """Lets time pass; asks again those who have not answered, and those who have fallen silent, if they can hear it."""
        self.listen(connected=connected, now=now)
        self.round.tick(now)
        if self._asking is None:
            return []
        effects = self.ask(self.round.devices(State.INVITED) if connected and now >= self._invite_at else [], now)
        if now < self._listen_at:
            return effects
        self._listen_at = now + PROBE_S / 2
        at_work = self.round.devices(State.ACCEPTED, State.TRAINING) if connected else []
        effects += self._probe(self._silence.to_probe(at_work, now), now)
        return [*effects, *(self._give_up_silent(now) if connected else [])]

    def listen(self, *, connected: bool, now: float) -> None:
        """Takes note of whether devices can be heard."""
        self._silence.note_link(now, connected=connected)

    def next_deadline(self) -> float | None:
        """When `tick` or `grant` has something to do."""
        invite_at = self._invite_at if self.round.count(State.INVITED) else None
        listen_at = self._listen_at if self.round.count(*AT_WORK) and self._asking is not None else None
        candidates = (self.round.next_deadline(), self._uploads.next_deadline(), invite_at, listen_at)
        return min((c for c in candidates if c is not None), default=None)

    def dismiss(self) -> list[Effect]:
        """Collecting is over: those who are not done are told so."""
        self.dismissed = True
        self.missed = [device for device, one in self.round.participants.items() if self._has_missed(device, one)]
        self._uploads.clear()
        return [self._send(device, Cancel("late")) for device in self.round.devices(State.LATE)]

    def user_accuracy(self) -> float | None:
        """Mean over the reports so far, before local training (paper, section 4.2); None without any."""
        return mean_accuracy(report.user_accuracy_before for report in self.reports.values())

    def traffic(self) -> RoundTraffic:
        """What has travelled so far."""
        if self._asking is None:
            return RoundTraffic(0, self._bytes_up)
        downloads = [self._asking.size_bytes(device) for device in self.round.had_model()]
        return RoundTraffic(sum(downloads), self._bytes_up, len(downloads))

    def record(self, outcome: str) -> RoundRecord:
        """The books on a round that is over."""
        record = build_record(
            self.round, outcome, self.reports, self.traffic(), self._refused, metric=self._spec.metric
        )
        return replace(
            record,
            bounded=self.bounded,
            bounded_devices=self.bounded_devices,
            offenders=dict(sorted(self.offenders.items())),
        )

    def _has_missed(self, device: str, one: Participant) -> bool:
        """Whether it missed the round, as coordinator.rounds.missed_rounds counts it, when collecting ended."""
        if device in self.round.left:
            return False
        if one.state is State.DECLINED:
            return True
        if one.state is State.FAILED:
            return one.reason in ("lost", SILENT, FailReason.DEADLINE)
        if one.state is not State.LATE or one.reason in ("lost", NO_ANSWER):
            return one.state is State.LATE
        if self.round.used_up:
            return True
        if self.round.quorum_s is None or self._uploads.has_in_line(device):
            return False
        return self._silence.is_mute(device, self.round.closing_at, uploads=State.UPLOADING in one.since)

    def _probe(self, devices: Sequence[str], now: float) -> list[Effect]:
        """The request once more, which a device at work answers at once."""
        self._silence.note_request(devices, now)
        return [self._request_to(device, now) for device in devices]

    def _give_up_silent(self, now: float) -> list[Effect]:
        """Once nothing is left to wait for but devices that have fallen silent."""
        awaited = self.round.devices(*AT_WORK) if self.round.phase is Phase.COLLECTING else []
        if not all(self._is_silent(device, now) for device in awaited):
            return []
        return [one for device in awaited for one in self.expel(device, now, SILENT, leaves=False)]

    def _is_silent(self, device: str, now: float) -> bool:
        """As coordinator.cohort.unresponsive_devices has it. Devices that are lost are given up by the round itself."""
        since, limit_s = self._silence.since(device), SILENT_S
        match self.round.participants[device].state:
            case State.LOST:
                return False
            case State.INVITED if self._fleet.is_starting(device):
                limit_s = STARTING_S
            case State.ACCEPTED:
                limit_s += self._known.size_bytes(device) / SLOW_BYTES_S
            case State.UPLOADING:
                since, limit_s = max(self._uploads.still_since(device, since, now), self._silence.began_at), STALL_S
        return now - since >= limit_s

    @property
    def _known(self) -> Invitations:
        assert self._asking is not None, "nobody has heard of a round before its model lies on the broker"
        return self._asking

    def _request_to(self, device: str, now: float) -> Effect:
        return self._send(device, self._known.request(device, self.round.remaining_s(now)))

    def _seen(self, device: str, event: Event, now: float) -> list[Effect]:
        """A sign of work, which says that the device accepted even if the word itself was lost or overtaken."""
        participant = self.round.participants[device]
        before = participant.accepted
        self.round.handle(device, event, now)
        if event is not Event.ACCEPT:
            self._known.mark_downloaded(device)
        return [CountEvent(device, "accepted")] if participant.accepted and not before else []

    def _declined(self, device: str, body: Decline, now: float) -> list[Effect]:
        self._uploads.release(device)
        if not self.round.handle(device, Event.DECLINE, now, word_of(body), leaves=lasts(body)):
            return []
        return [CountEvent(device, "declined", word_of(body), body.detail)]

    def _progress(self, device: str, body: Progress, now: float) -> list[Effect]:
        if device in self._fleet.members and body.total:
            self._fleet.members[device].progress = min(1.0, body.done / body.total)
        return self._seen(device, EVENT_OF_JOB[body.phase], now)

    def _offered(self, device: str, manifest: Manifest, now: float) -> list[Effect]:
        if device in self.reports:
            if self._post.committed.get(device) == manifest.digest:
                return [self._send(device, Committed(manifest.digest))]
            detail = "another update of this round is committed already"
            return [self._send(device, Refused(manifest.digest, RefuseReason.ALREADY_COMMITTED, detail))]
        if self.round.participants[device].state in (State.LATE, State.DECLINED, State.FAILED):
            refused = Refused(manifest.digest, RefuseReason.LATE, "the round went on without this device")
            return [self._send(device, refused), CountEvent(device, "late", RefuseReason.LATE)]
        spec = self._spec
        try:
            asked = self._known.encoding(device)
            check_offer(manifest, schema=spec.public_schema, encoding=asked, max_bytes=spec.max_blob_bytes)
        except UpdateRefused as error:
            return self.refuse(device, manifest.digest, RefuseReason(error.reason), str(error), now)
        accepted = self._seen(device, Event.OFFER, now)
        return [*accepted, self._send(device, self._uploads.offer(device, manifest, now))]

    def _send(self, device: str, body: Body) -> Effect:
        return self._post.send(device, self.round.number, body)
