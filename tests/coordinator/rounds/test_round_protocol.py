"""The open round: invitations, answers and presence."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.participant_transitions import Phase, State
from fedpatch.coordinator.rounds.round_messages import REINVITE_S
from fedpatch.coordinator.rounds.run_effects import ResendChunks
from fedpatch.shared.wire.chunked_transfer import Bitmap, cut
from fedpatch.shared.wire.messages import (
    COORDINATOR_FEATURES,
    Accept,
    Ack,
    Cancel,
    Decline,
    Failed,
    Grant,
    JobStatus,
    Need,
    Offer,
    Progress,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, JobPhase
from tests.coordinator.round_protocols import BLOB, Bench
from tests.support.specs import CHUNK_BYTES, RUN, SCHEMA, counted, gone, model, report, run_spec, there, told, update


def asked(effects) -> list[str]:
    """Who is sent a work request."""
    return [device for device, body in told(effects) if isinstance(body, WorkRequest)]


class TestInvitations:
    def test_state_all_terms(self):
        bench = Bench("ab", deadline_s=300.0)
        assert counted(bench.begun) == [("a", "invited", ""), ("b", "invited", "")]
        terms = (SCHEMA, "affine", run_spec().plan, model(), "fp32", CHUNK_BYTES, 300.0)
        request = WorkRequest(*terms, features=COORDINATOR_FEATURES)
        assert told(bench.begun) == [("a", request), ("b", request)]

    def test_unanswered_invitations_are_repeated_with_the_time_that_is_left(self):
        bench = Bench("abc")
        bench.hear("a", Accept(10))
        bench.hear("b", Decline(DeclineReason.UNWILLING))
        assert bench.open.next_deadline() == REINVITE_S
        assert bench.open.tick(REINVITE_S - 0.1) == []
        [(device, request)] = told(bench.open.tick(REINVITE_S))
        assert isinstance(request, WorkRequest)
        assert (device, request.deadline_s) == ("c", 297.0)
        bench.hear("c", Accept(10))
        assert bench.open.tick(2 * REINVITE_S) == []

    def test_deadline_is_limited_by_the_time_limit_of_the_run(self):
        bench = Bench("a", limit_s=40.0)
        [(_, request)] = told(bench.begun)
        assert isinstance(request, WorkRequest)
        assert request.deadline_s == 40.0
        bench.accept_all()
        assert bench.open.round.next_deadline() == 40.0


class TestAnswers:
    def test_repeated_acceptance_counts_once(self):
        bench = Bench("ab")
        assert counted(bench.hear("a", Accept(10), Accept(10))) == [("a", "accepted", "")]

    @pytest.mark.parametrize(
        "body", [Progress(JobPhase.TRAINING, 0, 1), Progress(JobPhase.DOWNLOADING, 0, 1), Offer(update())], ids=str
    )
    def test_a_sign_of_work_counts_as_accepting(self, body):
        """The acceptance itself may be lost or arrive later."""
        bench = Bench("ab")
        assert counted(bench.hear("a", body, Accept(10))) == [("a", "accepted", "")]
        assert bench.open.round.accepted() == ["a"]

    def test_acceptance_after_a_restart_is_not_counted_again(self):
        bench = Bench("ab").accept_all()
        bench.see("a", there("b2"))
        assert counted(bench.hear("a", Accept(10))) == []

    def test_progress_is_kept_as_a_fraction_of_at_most_one(self):
        bench = Bench("ab").accept_all()
        for done, total, fraction in ((1, 4, 0.25), (9, 4, 1.0), (0, 0, 1.0)):
            bench.hear("a", Progress(JobPhase.TRAINING, done, total))
            assert bench.fleet.members["a"].progress == fraction
        assert bench.state("a") is State.TRAINING

    def test_repeated_decline_counts_once_with_its_reason_or_condition(self):
        bench = Bench("ab")
        decline = Decline(DeclineReason.SCHEMA_MISMATCH, "why")
        assert counted(bench.hear("a", decline, decline)) == [("a", "declined", "schema_mismatch")]
        hot = Decline(DeclineReason.UNWILLING, "why", Condition.TOO_HOT)
        assert counted(bench.hear("b", hot)) == [("b", "declined", "too_hot")]
        assert bench.open.round.reasons(State.DECLINED) == {"schema_mismatch": 1, "too_hot": 1}

    def test_repeated_failure_counts_once_with_its_reason_or_condition(self):
        bench = Bench("ab").accept_all()
        failed = Failed(FailReason.TRAINING)
        assert counted(bench.hear("a", failed, failed)) == [("a", "failed", "training")]
        assert bench.open.round.reasons(State.FAILED) == {"training": 1}
        abandoned = Failed(FailReason.UNWILLING, Condition.PAUSED)
        assert counted(Bench("ab").accept_all().hear("b", abandoned)) == [("b", "failed", "paused")]

    def test_messages_of_a_coordinator_are_ignored(self):
        assert Bench().hear("a", Cancel("late"), Ack(update().digest, b"")) == []

    @pytest.mark.parametrize(
        "body",
        [Accept(10), Progress(JobPhase.TRAINING, 1, 2), Need(model().digest, b"\x01")],
        ids=lambda b: type(b).__name__,
    )
    @pytest.mark.parametrize("end", ["late", "failed", "declined"])
    def test_work_of_a_device_that_is_out_is_cancelled(self, body, end):
        """Messages of work: the round went on without the device."""
        bench = Bench("abc", quorum=0.1)
        bench.hear("b", Accept(10))
        bench.lose("a", end)
        assert told(bench.hear("a", body)) == [("a", Cancel(end))]


class TestMissingChunks:
    def need(self, *indices: int) -> Need:
        """Asks for these chunks of the model."""
        return Need(model().digest, Bitmap(3, indices).to_bytes())

    def test_requested_chunks_are_published_again(self):
        assert Bench().hear("a", self.need(0, 2)) == [ResendChunks(model().digest, (0, 2))]

    def test_requests_for_another_model_or_no_chunk_are_ignored(self):
        nonsense = (Need("00" * 32, b"\x01"), Need(model().digest, b"\xff"), self.need())
        assert Bench().hear("a", *nonsense) == []


class TestPresence:
    def job(self, phase: JobPhase, round_number: int = 1, epoch: int = 1) -> JobStatus:
        """What a device says it is on."""
        return JobStatus(RUN, epoch, round_number, phase)

    def test_presence_of_a_device_that_was_not_invited_is_ignored(self):
        bench = Bench("a")
        assert bench.see("z", there()) == []
        assert bench.see("z", gone()) == []

    def test_a_device_that_vanishes_is_lost_once(self):
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
    def test_a_device_that_comes_back_with_its_job_goes_on(self, phase, state):
        bench = Bench("ab").accept_all()
        bench.see("a", gone())
        bench.see("a", there(job=self.job(phase)))
        assert bench.state("a") is state

    def test_a_device_that_restarted_is_asked_again(self):
        """It has lost its work."""
        bench = Bench("ab").accept_all()
        bench.hear("a", Progress(JobPhase.TRAINING, 1, 2))
        assert asked(bench.see("a", there("b2"))) == ["a"]
        assert bench.state("a") is State.INVITED
        assert bench.open.next_deadline() == REINVITE_S

    def test_a_device_that_restarted_with_its_update_goes_on(self):
        bench = Bench("ab").accept_all()
        bench.see("a", there("b2", job=self.job(JobPhase.UPLOADING)))
        assert bench.state("a") is State.UPLOADING

    def test_a_device_that_is_back_without_its_job_is_asked_again(self):
        """Also where the connection broke before the request came through."""
        bench = Bench("abc")
        bench.hear("a", Accept(10))
        bench.see("b", gone())
        for device in "abc":
            assert asked(bench.see(device, there())) == [device]
        assert bench.state("b") is State.INVITED

    @pytest.mark.parametrize("phase", list(JobPhase))
    @pytest.mark.parametrize("other", [{"epoch": 0}, {"round_number": 7}], ids=str)
    def test_a_device_on_another_job_is_asked_until_it_answers(self, phase, other):
        """The same round before the coordinator's restart is another job, too."""
        bench = Bench("ab").accept_all()
        assert asked(bench.see("a", there(job=self.job(phase, **other)))) == ["a"]
        assert asked(bench.open.tick(5.0)) == asked(bench.open.tick(8.0)) == ["a"]
        bench.hear("a", Accept(10))
        assert asked(bench.open.tick(11.0)) == []

    def test_a_presence_that_is_older_than_the_job_stops_no_upload(self):
        """The broker sends retained presence again when the coordinator reconnects."""
        bench = Bench("ab").accept_all()
        bench.hear("a", Offer(update()))
        bench.see("a", there())
        bench.chunks("a")
        bench.open.stored("a", update().digest, report(), 3.0)
        assert bench.state("a") is State.REPORTED

    def test_restart_or_will_after_the_report_changes_nothing(self):
        bench = Bench("ab").accept_all()
        bench.upload("a")
        bench.open.stored("a", update().digest, report(), 3.0)
        assert bench.see("a", gone()) + bench.see("a", there("b2")) + bench.see("a", there("b2")) == []
        assert bench.state("a") is State.REPORTED

    def test_upload_goes_on_after_a_broken_connection(self):
        bench = Bench("ab").accept_all()
        bench.hear("a", Offer(update()))
        bench.open.on_chunk("a", cut(BLOB, update(), 2), 2.0)
        bench.see("a", gone())
        bench.see("a", there(job=self.job(JobPhase.UPLOADING)))
        assert told(bench.hear("a", Offer(update()))) == [("a", Grant(update().digest, 4, b"\x04"))]

    def test_device_away_longer_than_rejoin_s_fails_and_is_cancelled(self):
        bench = Bench("ab", rejoin_s=30.0, quorum=0.5).accept_all()
        bench.see("a", gone(), now=5.0)
        bench.open.tick(35.0)
        assert bench.open.round.reasons(State.FAILED) == {"lost": 1}
        assert bench.see("a", there(job=self.job(JobPhase.TRAINING)), now=36.0) == []
        assert told(bench.hear("a", Progress(JobPhase.TRAINING, 1, 2), now=37.0)) == [("a", Cancel("failed"))]

    def test_presence_after_collecting_is_ignored(self):
        bench = Bench("ab", min_cohort=2)
        bench.open.tick(10.0)
        assert bench.open.round.phase is Phase.FAILED
        assert bench.see("a", there("b2")) == []
