"""The open round: invitations, answers, presence, offers, updates and its record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import UNSET

from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.rounds.chunk_resends import FAN_OUT_BYTES_S
from fedpatch.coordinator.rounds.decline_hints import hint_for
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.participant_transitions import Phase, State
from fedpatch.coordinator.rounds.repeated_requests import REINVITE_S
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, ResendChunks, StoreUpdate
from fedpatch.coordinator.rounds.run_events import ModelPublished
from fedpatch.coordinator.rounds.upload_scheduler import UPLOAD_IDLE_S
from fedpatch.coordinator.rounds.work_requests import Invitations
from fedpatch.shared.wire.chunks import Bitmap, Chunk, cut
from fedpatch.shared.wire.features import COORDINATOR_FEATURES, URL_FEATURE
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    Accept,
    Ack,
    Cancel,
    Committed,
    Decline,
    Failed,
    Grant,
    JobStatus,
    ModelDelta,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, JobPhase, RefuseReason
from tests.coordinator.round_protocols import BLOB, Bench
from tests.support.specs import (
    CHUNK_BYTES,
    RUN,
    SCHEMA,
    TASK,
    counted,
    gone,
    model,
    refusal,
    report,
    run_spec,
    sent,
    there,
    update,
)


def asked(effects) -> list[str]:
    """Return the devices that are sent a work request."""
    return [device for device, body in sent(effects) if isinstance(body, WorkRequest)]


class TestInvitations:
    def test_download_depends_on_the_version_held(self):
        spec, fleet = run_spec(encoding="delta-int8"), Fleet(TASK, encoding="delta-int8")
        for device in "abc":
            fleet.update(device, there())
        fleet.update("d", replace(there(), encodings=("fp32",)))
        fleet.note_version("a", "77" * 32)
        fleet.note_version("b", model().digest)
        delta = ModelDelta("77" * 32, "88" * 32, model(b"d" * 40))
        journal = RoundJournal(1, 4, tuple("abcd"), base="")
        made = Invitations(spec, fleet, journal, ModelPublished(model(), [delta]))
        assert [made.size_bytes(device) for device in "abcd"] == [40, 0, 250, 250]
        assert [made.request(device, 1.0).deltas for device in "abcd"] == [(delta,), (), (delta,), ()]
        saved = made.with_encodings(journal)
        assert (saved.encoding, saved.negotiated) == ("delta-int8", {"d": "fp32"})

    def test_device_that_lacks_the_delta_encoding_gets_another_and_the_whole_model(self):
        wanted = "delta-int8"
        spec, fleet = run_spec(encoding=wanted), Fleet(TASK, encoding=wanted)
        fleet.update("a", there())
        fleet.update("b", replace(there(), encodings=tuple(one for one in ENCODINGS if one != wanted)))
        for device in "ab":
            fleet.note_version(device, "77" * 32)
        delta = ModelDelta("77" * 32, "88" * 32, model(b"d" * 40))
        made = Invitations(spec, fleet, RoundJournal(1, 4, tuple("ab"), base=""), ModelPublished(model(), [delta]))
        requests = [made.request(device, 1.0) for device in "ab"]
        assert [one.encoding for one in requests] == [wanted, "fp32+zstd"]
        assert [one.deltas for one in requests] == [(delta,), ()]

    def test_only_devices_that_fetch_get_urls_and_a_model_with_chunks_is_resent_as_without(self):
        fleet = Fleet(TASK)
        fleet.update("a", fleet.relevant(replace(there(), features=(URL_FEATURE,))))
        fleet.update("b", there())
        published = ModelPublished(model(), urls={model().digest: "https://cdn.example/ab"})
        need = Need(model().digest, b"\x07")
        for devices, resent in (("ab", []), ("a", [ResendChunks(model().digest, (0, 1, 2))])):
            journal = RoundJournal(1, 2, tuple(devices), base="")
            made = Invitations(run_spec(), fleet, journal, published, 10.0)
            assert [made.request(device, 1.0).model.url for device in devices] == [
                "https://cdn.example/ab",
                UNSET,
            ][: len(devices)]
            assert made.common_request.model.url is UNSET
            # Chunks published a moment ago are not resent. If no chunks were published, the first request publishes all.
            large = FAN_OUT_BYTES_S
            assert made.resend_due(need, 10.5, waiting=int(large)) == resent
            assert made.resend_due(need, 10.9, waiting=int(large)) == []

    def test_missing_chunks_are_resent_by_the_number_of_devices_without_the_model(self, monkeypatch):
        """Devices without the model are invited devices and devices that have accepted."""
        bench = Bench("abc")
        bench.receive("a", Accept(10))
        waited: list[int] = []

        def resend_due(need: Need, now: float, waiting: int) -> list[Effect]:
            waited.append(waiting)
            return []

        monkeypatch.setattr(bench.open._issued_invitations, "resend_due", resend_due)
        bench.receive("a", Need(model().digest, b"\x01"))
        assert waited == [3]

    def test_failure_is_counted_with_its_hint(self):
        failed = Failed(FailReason.STORAGE)
        [event] = Bench("ab").accept_all().receive("a", failed)
        assert event == CountEvent("a", "failed", "storage", hint_for(failed))
        assert hint_for(failed)

    def test_expelled_device_is_counted_as_failed_unless_it_has_reported(self):
        bench = Bench("ab").accept_all()
        bench.report("a")
        assert bench.open.expel("a", 5.0, "revoked") == []
        assert counted(bench.open.expel("b", 5.0, "revoked")) == [("b", "failed", "revoked")]

    def test_state_all_terms(self):
        bench = Bench("ab", deadline_s=300.0)
        assert counted(bench.begun) == [("a", "invited", ""), ("b", "invited", "")]
        terms = (SCHEMA, "affine", run_spec().plan, model(), "fp32", CHUNK_BYTES, 300.0)
        request = WorkRequest(*terms, features=COORDINATOR_FEATURES)
        assert sent(bench.begun) == [("a", request), ("b", request)]

    @pytest.mark.parametrize("privacy", [None, PrivacyPolicy(1.0, 0.5)])
    def test_state_the_terms_of_differential_privacy_for_the_target_of_the_round(self, privacy):
        journal = RoundJournal(9, 3, ("a",), base="")
        invitations = Invitations(run_spec(privacy=privacy), Fleet(TASK), journal, ModelPublished(model()))
        expected = None if privacy is None else privacy.terms(3)
        assert invitations.request("a", 10.0).privacy == expected

    def test_state_the_last_round_that_counted_where_devices_keep_control_variates(self):
        plan = replace(run_spec().plan, moments=("control",))
        for spec, expected in ((run_spec(), [UNSET, UNSET]), (run_spec(plan=plan), [7, 0])):
            journal = RoundJournal(9, 2, ("a", "b"), base="")
            invitations = Invitations(spec, Fleet(TASK), journal, ModelPublished(model(), counted={"a": 7}))
            found = [invitations.request(device, 10.0).counted for device in "ab"]
            assert found == expected

    def test_unanswered_invitations_are_repeated_with_the_time_that_is_left(self):
        bench = Bench("abc")
        bench.receive("a", Accept(10))
        bench.receive("b", Decline(DeclineReason.UNWILLING))
        assert bench.open.next_deadline() == REINVITE_S
        assert bench.open.tick(REINVITE_S - 0.1) == []
        [(device, request)] = sent(bench.open.tick(REINVITE_S))
        assert isinstance(request, WorkRequest)
        assert (device, request.deadline_s) == ("c", 297.0)
        bench.receive("c", Accept(10))
        assert bench.open.tick(2 * REINVITE_S) == []

    def test_deadline_is_limited_by_the_time_limit_of_the_run(self):
        bench = Bench("a", limit_s=40.0)
        [(_, request)] = sent(bench.begun)
        assert isinstance(request, WorkRequest)
        assert request.deadline_s == 40.0
        bench.accept_all()
        assert bench.open.round.next_deadline() == 40.0


class TestAnswers:
    def test_repeated_acceptance_counts_once(self):
        bench = Bench("ab")
        assert counted(bench.receive("a", Accept(10), Accept(10))) == [("a", "accepted", "")]

    @pytest.mark.parametrize(
        "body", [Progress(JobPhase.TRAINING, 0, 1), Progress(JobPhase.DOWNLOADING, 0, 1), Offer(update())], ids=str
    )
    def test_message_of_work_counts_as_acceptance(self, body):
        """The acceptance itself may be lost or arrive later."""
        bench = Bench("ab")
        assert counted(bench.receive("a", body, Accept(10))) == [("a", "accepted", "")]
        assert bench.open.round.accepted() == ["a"]

    def test_acceptance_after_a_restart_is_not_counted_again(self):
        bench = Bench("ab").accept_all()
        bench.see("a", there("b2"))
        assert counted(bench.receive("a", Accept(10))) == []

    def test_progress_is_kept_as_a_fraction_of_at_most_one(self):
        bench = Bench("ab").accept_all()
        for done, total, fraction in ((1, 4, 0.25), (9, 4, 1.0), (0, 0, 1.0)):
            bench.receive("a", Progress(JobPhase.TRAINING, done, total))
            assert bench.fleet.members["a"].progress == fraction
        assert bench.state("a") is State.TRAINING

    @pytest.mark.parametrize(
        ("body", "state", "reason"),
        [
            (Decline(DeclineReason.SCHEMA_MISMATCH, "why"), State.DECLINED, "schema_mismatch"),
            (Decline(DeclineReason.UNWILLING, "why", Condition.TOO_HOT), State.DECLINED, "too_hot"),
            (Failed(FailReason.TRAINING), State.FAILED, "training"),
            (Failed(FailReason.UNWILLING, Condition.PAUSED), State.FAILED, "paused"),
        ],
    )
    def test_repeated_decline_or_failure_counts_once_with_its_reason_or_condition(self, body, state, reason):
        bench = Bench("ab")
        bench.receive("a", *[Accept(10)] * isinstance(body, Failed))
        assert counted(bench.receive("a", body, body)) == [("a", state.value, reason)]
        assert bench.open.round.reasons(state) == {reason: 1}

    def test_messages_of_a_coordinator_are_ignored(self):
        assert Bench().receive("a", Cancel("late"), Ack(update().digest, b"")) == []

    @pytest.mark.parametrize(
        "body",
        [Accept(10), Progress(JobPhase.TRAINING, 1, 2), Need(model().digest, b"\x01")],
        ids=lambda b: type(b).__name__,
    )
    @pytest.mark.parametrize("end", ["late", "failed", "declined"])
    def test_work_of_a_device_that_is_out_is_cancelled(self, body, end):
        """The device still sends messages of work, but the round continues without it."""
        bench = Bench("abc", quorum=0.1)
        bench.receive("b", Accept(10))
        bench.lose("a", end)
        assert sent(bench.receive("a", body)) == [("a", Cancel(end))]


class TestMissingChunks:
    def need(self, *indices: int) -> Need:
        """Return a request for these chunks of the model."""
        return Need(model().digest, Bitmap(3, indices).to_bytes())

    def test_requested_chunks_are_published_again(self):
        assert Bench().receive("a", self.need(0, 2)) == [ResendChunks(model().digest, (0, 2))]

    def test_requests_for_another_model_or_no_chunk_are_ignored(self):
        nonsense = (Need("00" * 32, b"\x01"), Need(model().digest, b"\xff"), self.need())
        assert Bench().receive("a", *nonsense) == []


class TestPresence:
    def job(self, phase: JobPhase, round_number: int = 1, epoch: int = 1) -> JobStatus:
        """Return the job status that a device reports."""
        return JobStatus(RUN, epoch, round_number, phase)

    def test_presence_of_a_device_that_was_not_invited_is_ignored(self):
        bench = Bench("a")
        assert bench.see("z", there()) == []
        assert bench.see("z", gone()) == []

    def test_repeated_last_will_counts_as_lost_once(self):
        bench = Bench("ab").accept_all()
        assert counted(bench.see("a", gone()) + bench.see("a", gone())) == [("a", "lost", "")]
        assert bench.state("a") is State.LOST

    @pytest.mark.parametrize(
        ("phase", "state"),
        [
            (JobPhase.DOWNLOADING, State.ACCEPTED),
            (JobPhase.TRAINING, State.TRAINING),
            (JobPhase.UPLOADING, State.UPLOADING),
        ],
    )
    def test_device_that_comes_back_with_its_job_goes_on(self, phase, state):
        bench = Bench("ab").accept_all()
        bench.see("a", gone())
        bench.see("a", there(job=self.job(phase)))
        assert bench.state("a") is state

    def test_restarted_device_is_invited_again(self):
        """A restarted device has lost its work."""
        bench = Bench("ab").accept_all()
        bench.receive("a", Progress(JobPhase.TRAINING, 1, 2))
        assert asked(bench.see("a", there("b2"))) == ["a"]
        assert bench.state("a") is State.INVITED
        assert bench.open.next_deadline() == REINVITE_S

    def test_restarted_device_with_its_update_goes_on(self):
        bench = Bench("ab").accept_all()
        bench.see("a", there("b2", job=self.job(JobPhase.UPLOADING)))
        assert bench.state("a") is State.UPLOADING

    def test_device_back_without_its_job_is_invited_again(self):
        """This includes a connection that broke before the request arrived."""
        bench = Bench("abc")
        bench.receive("a", Accept(10))
        bench.see("b", gone())
        for device in "abc":
            assert asked(bench.see(device, there())) == [device]
        assert bench.state("b") is State.INVITED

    @pytest.mark.parametrize("phase", list(JobPhase))
    @pytest.mark.parametrize("other", [{"epoch": 0}, {"round_number": 7}], ids=str)
    def test_device_on_another_job_is_invited_until_it_answers(self, phase, other):
        """The same round of an earlier epoch is also another job."""
        bench = Bench("ab").accept_all()
        assert asked(bench.see("a", there(job=self.job(phase, **other)))) == ["a"]
        assert asked(bench.open.tick(5.0)) == asked(bench.open.tick(8.0)) == ["a"]
        bench.receive("a", Accept(10))
        assert asked(bench.open.tick(11.0)) == []

    def test_presence_older_than_the_job_stops_no_upload(self):
        """The broker sends retained presence again when the coordinator reconnects."""
        bench = Bench("ab").accept_all()
        bench.receive("a", Offer(update()))
        bench.see("a", there())
        bench.chunks("a")
        bench.open.stored("a", update().digest, report(), 3.0)
        assert bench.state("a") is State.REPORTED

    def test_restart_or_will_after_the_report_changes_nothing(self):
        bench = Bench("ab").accept_all()
        bench.report("a")
        assert bench.see("a", gone()) + bench.see("a", there("b2")) + bench.see("a", there("b2")) == []
        assert bench.state("a") is State.REPORTED

    def test_upload_goes_on_after_a_broken_connection(self):
        bench = Bench("ab").accept_all()
        bench.receive("a", Offer(update()))
        bench.open.on_chunk("a", cut(BLOB, update(), 2), 2.0)
        bench.see("a", gone())
        bench.see("a", there(job=self.job(JobPhase.UPLOADING)))
        assert sent(bench.receive("a", Offer(update()))) == [("a", Grant(update().digest, 4, b"\x04"))]

    def test_device_away_longer_than_rejoin_s_fails_and_is_cancelled(self):
        bench = Bench("ab", rejoin_s=30.0, quorum=0.5).accept_all()
        bench.see("a", gone(), now=5.0)
        bench.open.tick(35.0)
        assert bench.open.round.reasons(State.FAILED) == {"lost": 1}
        assert bench.see("a", there(job=self.job(JobPhase.TRAINING)), now=36.0) == []
        assert sent(bench.receive("a", Progress(JobPhase.TRAINING, 1, 2), now=37.0)) == [("a", Cancel("failed"))]

    def test_presence_after_collecting_is_ignored(self):
        bench = Bench("ab", min_cohort=2)
        bench.open.tick(10.0)
        assert bench.open.round.phase is Phase.FAILED
        assert bench.see("a", there("b2")) == []


DIGEST = update().digest


class TestOffers:
    def test_offers_are_granted_while_slots_are_free(self):
        bench = Bench("abc", upload_slots=2).accept_all()
        answers = [sent(bench.receive(device, Offer(update(device.encode() * 350))))[0][1] for device in "abc"]
        assert [type(answer) for answer in answers] == [Grant, Grant, RetryAfter]
        assert bench.open.grant(2.0) == []
        bench.receive("a", Failed(FailReason.TRAINING))
        assert sent(bench.open.grant(2.0)) == [("c", Grant(update(b"c" * 350).digest, 4, bytes(1)))]

    def test_offer_takes_the_slot_of_a_silent_device(self):
        bench = Bench("ab", upload_slots=1).accept_all()
        bench.receive("a", Offer(update(b"a" * 350)))
        bench.receive("b", Offer(update(b"b" * 350)))
        while (at := bench.open.next_deadline()) is not None and at < 1.0 + UPLOAD_IDLE_S:
            bench.open.tick(at)
        assert at == 1.0 + UPLOAD_IDLE_S
        assert [device for device, _ in sent(bench.open.grant(1.0 + UPLOAD_IDLE_S))] == ["b"]

    def test_impossible_offer_is_refused_before_its_chunks(self):
        bench = Bench("ab").accept_all()
        effects = bench.receive("a", Offer(replace(update(), schema="00" * 32)))
        assert refusal(effects).reason is RefuseReason.SCHEMA_MISMATCH
        assert counted(effects) == [("a", "refused", RefuseReason.SCHEMA_MISMATCH)]
        assert bench.state("a") is State.FAILED
        assert bench.chunks("a") == []

    @pytest.mark.parametrize("end", ["declined", "failed", "late"])
    def test_offers_of_a_device_that_is_out_are_refused_as_late(self, end):
        bench = Bench("abc", quorum=0.1)
        bench.receive("b", Accept(10))
        bench.lose("a", end)
        effects = bench.receive("a", Offer(update()))
        assert refusal(effects).reason is RefuseReason.LATE
        assert counted(effects) == [("a", "late", "late")]


class TestUpdates:
    def test_updates_are_stored_before_they_are_committed(self):
        bench = Bench("ab").accept_all()
        assert bench.upload("a")[-1] == StoreUpdate(1, "a", update(), BLOB)
        assert bench.state("a") is State.UPLOADING
        effects = bench.open.stored("a", DIGEST, report(), 3.0)
        assert sent(effects) == [("a", Committed(DIGEST))]
        assert counted(effects) == [("a", "reported", "")]
        assert bench.state("a") is State.REPORTED

    def test_chunks_are_acknowledged_if_they_were_offered(self):
        bench = Bench("ab", upload_window=2).accept_all()
        bench.receive("a", Offer(update()))
        assert sent(bench.open.on_chunk("a", cut(BLOB, update(), 1), 2.0)) == [("a", Ack(DIGEST, b"\x02"))]
        assert bench.open.on_chunk("b", cut(BLOB, update(), 1), 2.0) == []

    def test_offer_of_a_committed_update_is_committed_again_and_counts_once(self):
        bench = Bench("ab").accept_all()
        bench.report("a")
        assert sent(bench.receive("a", Offer(update()))) == [("a", Committed(DIGEST))]
        again = bench.open.stored("a", DIGEST, report(), 4.0)
        assert (sent(again), counted(again)) == ([("a", Committed(DIGEST))], [])
        assert len(bench.open.reports) == 1

    def test_second_update_of_a_device_is_refused(self):
        bench = Bench("ab").accept_all()
        bench.report("a")
        assert refusal(bench.receive("a", Offer(update(b"other")))).reason is RefuseReason.ALREADY_COMMITTED

    def test_update_with_another_digest_is_refused_and_not_stored(self):
        bench = Bench("ab").accept_all()
        bench.receive("a", Offer(update()))
        parts = [cut(BLOB, update(), index) for index in range(3)]
        parts.append(Chunk(DIGEST, 3, 4, b"x" * 50))
        effects = [effect for part in parts for effect in bench.open.on_chunk("a", part, 2.0)]
        assert not any(isinstance(effect, StoreUpdate) for effect in effects)
        assert sent(effects)[-1] == ("a", Refused(DIGEST, RefuseReason.DAMAGED, "SHA-256 differs"))
        assert bench.state("a") is State.FAILED

    def test_rejected_update_fails_the_device_and_counts_the_reason(self):
        bench = Bench("ab", quorum=0.5).accept_all()
        bench.upload("a")
        effects = bench.open.refuse("a", DIGEST, RefuseReason.NOT_FINITE, "x" * 900, 3.0)
        assert refusal(effects) == Refused(DIGEST, RefuseReason.NOT_FINITE, "x" * 500)
        assert counted(effects) == [("a", "refused", "not_finite")]
        assert bench.open.round.reasons(State.FAILED) == {"not_finite": 1}

    def test_update_stored_after_the_end_is_refused(self):
        """`committed` is a promise that the update counts."""
        bench = Bench("ab", grace_s=20.0, quorum=0.5).accept_all()
        bench.upload("a")
        bench.report("b", blob=b"b" * 350)
        bench.open.tick(23.0)
        assert bench.open.round.phase is Phase.AGGREGATING
        assert refusal(bench.open.stored("a", DIGEST, report(), 24.0)).reason is RefuseReason.LATE
        assert list(bench.open.reports) == ["b"]
        assert bench.post.committed == {"b": update(b"b" * 350).digest}


class TestRecord:
    def test_late_devices_are_cancelled_and_their_uploads_dropped(self):
        bench = Bench("abc", quorum=0.3, grace_s=5.0).accept_all()
        bench.receive("b", Offer(update(b"b" * 350)))
        bench.report("a")
        bench.open.tick(8.0)
        assert sent(bench.open.dismiss()) == [("b", Cancel("late")), ("c", Cancel("late"))]
        assert bench.chunks("b", b"b" * 350) == []
        assert bench.open.next_deadline() is None

    def test_record_counts_devices_reasons_and_bytes(self):
        bench = Bench("abcdef", quorum=0.4, recruit_deadline_s=10.0, grace_s=5.0)
        for device in "abcd":
            bench.receive(device, Accept(10))
        bench.receive("e", Decline(DeclineReason.UNWILLING))
        bench.receive("d", Failed(FailReason.TRAINING))
        for device, accuracy in (("a", 0.5), ("b", 0.75)):
            bench.report(device, accuracy, 10.0, device.encode() * 350)
        bench.open.refuse("c", DIGEST, RefuseReason.NOT_FINITE, "", 10.0)
        bench.open.tick(10.0)
        bench.open.round.finish(12.0)
        assert bench.open.user_accuracy() == 0.625
        record = bench.open.record("aggregated")
        assert (record.round, record.outcome, record.failure) == (1, "aggregated", "")
        assert (record.cohort, record.accepted, record.declined, record.reported, record.late) == (6, 4, 1, 2, 1)
        assert (record.user_accuracy, record.user_accuracy_min, record.user_accuracy_after) == (0.625, 0.5, 0.625)
        assert (record.bytes_down, record.bytes_up) == (2 * model().size_bytes, 700)
        assert (record.num_examples, record.phase_seconds.aggregate) == (20, 2.0)
        assert record.decline_reasons == {"unwilling": 1}
        assert record.failures == {"training": 1, "not_finite": 1}
        assert record.refused == {"not_finite": 1}

    def test_record_without_measurements_has_no_user_accuracy(self):
        bench = Bench("ab").accept_all()
        bench.report("a", None)
        record = bench.open.record("failed")
        assert (record.user_accuracy, record.user_accuracy_min, record.user_accuracy_after) == (None, None, None)


class TestCountedOut:
    """A device that is out of the round: its late messages and chunks."""

    def test_chunks_of_a_device_that_was_given_up_are_ignored(self):
        bench = Bench("abc", quorum=0.1, rejoin_s=5.0).accept_all()
        bench.receive("a", Offer(update()))
        manifest = update()
        parts = [cut(BLOB, manifest, index) for index in range(manifest.chunk_count)]
        for part in parts[:-1]:
            bench.open.on_chunk("a", part, 2.0)
        bench.see("a", gone(), now=2.0)
        bench.open.tick(8.0)
        assert bench.state("a") is State.FAILED
        assert bench.open.on_chunk("a", parts[-1], 9.0) == []

    def test_device_that_declines_after_its_offer_frees_its_slot(self):
        bench = Bench("abc", upload_slots=1).accept_all()
        bench.receive("a", Offer(update()))
        bench.receive("b", Offer(update(b"v" * 350)))
        bench.see("a", gone())
        bench.receive("a", Decline(DeclineReason.UNWILLING))
        assert [device for device, body in sent(bench.open.grant(2.0)) if isinstance(body, Grant)] == ["b"]
