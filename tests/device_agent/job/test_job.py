"""The job: from its model to `committed`, and every way in which it ends earlier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import (
    EndJob,
    JobState,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    StopTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunked_transfer import SendChunk, cut
from fedpatch.shared.wire.messages import (
    Accept,
    Ack,
    Cancel,
    Committed,
    Failed,
    Grant,
    JobStatus,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
)
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase, RefuseReason
from tests.device_agent.jobs import (
    BLOB,
    DIGEST,
    IN_EACH_STATE,
    KEY,
    REQUEST,
    ask,
    downloading,
    here,
    said_back,
    training,
    uploading,
)
from tests.support.specs import RUN, model, said, update


class TestDownload:
    def test_keeps_chunks_and_trains_when_it_has_them(self):
        """The last chunk begins the training, and says so."""
        job = downloading(have=frozenset({0}))
        assert job.on_chunk(cut(BLOB, model(), 2), 11.0) == [WriteChunk(cut(BLOB, model(), 2))]
        assert job.on_chunk(cut(BLOB, model(), 2), 11.0) == []
        kept, begun, train = job.on_chunk(cut(BLOB, model(), 1), 13.5)
        assert (kept, said_back([begun])) == (WriteChunk(cut(BLOB, model(), 1)), [Progress(JobPhase.TRAINING, 0, 1)])
        assert train == StartTraining(KEY, REQUEST, 3.5, DownloadPlan(model()))
        assert train.ends_at == 10.0 + REQUEST.deadline_s
        assert job.on_chunk(cut(BLOB, model(), 1), 14.0) == []

    def test_that_was_complete_before_trains_at_once(self):
        """A reboot after the last chunk costs nothing."""
        job = Job(max_blob_bytes=10_000)
        ask(job)
        assert [type(effect) for effect in here(job, range(3), 10.0)] == [SendMessage, StartTraining]

    def test_asks_for_what_is_missing(self):
        """After a quiet second, and while it is not yet prepared not at all."""
        job = Job(max_blob_bytes=10_000)
        ask(job)
        assert job.on_chunk(cut(BLOB, model(), 0), 10.5) == []
        assert job.next_deadline() == 310.0
        assert job.tick(200.0) == []
        here(job, frozenset({1}), 200.0)
        assert job.next_deadline() == 201.0
        assert said_back(job.tick(201.0)) == [Need(model().digest, b"\x05")]
        assert job.tick(201.5) == []

    def test_that_is_damaged_begins_anew(self):
        """What the disk made of it is not what was announced."""
        job = training()
        assert job.damaged() == [StartDownload((model(),))]
        assert (job.state, here(job, frozenset(), 20.0)) == (JobState.DOWNLOADING, [])

    def test_ends_at_the_deadline(self):
        """As does training; the coordinator hears of it."""
        for job in (downloading(), training()):
            assert job.next_deadline() is not None
            assert said_back(job.tick(310.0))[0] == Failed(FailReason.DEADLINE)
            assert job.state is JobState.IDLE


class TestTraining:
    def test_shows_signs_of_life(self):
        """And is not interrupted by anything but its deadline."""
        job = training()
        assert said_back(job.progress(KEY, 3, 5)) == [Progress(JobPhase.TRAINING, 3, 5)]
        assert job.next_deadline() == 310.0
        assert job.tick(309.9) == []

    def test_ends_with_an_offer(self):
        """What must survive a restart is remembered before it is offered."""
        job = training()
        spool, offer = job.trained(KEY, update(), 20.0)
        assert (spool, said_back([offer])) == (SpoolUpdate(KEY, update(), REQUEST), [Offer(update())])
        assert job.status() == JobStatus(RUN, 1, 1, JobPhase.UPLOADING)

    def test_that_fails_is_told(self):
        """The coordinator hears the reason; what an error's words hold is for the device alone."""
        effects = training().training_failed(KEY, FailReason.NOT_FINITE, "secret.weight holds nan")
        assert said_back(effects) == [Failed(FailReason.NOT_FINITE)]
        assert [type(effect) for effect in effects] == [SendMessage, StopTraining, EndJob]
        assert effects[-1] == EndJob("gave up: not_finite: secret.weight holds nan", gave_up=True)

    @pytest.mark.parametrize("other", [{"run": "run-2"}, {"round": 2}, {"epoch": 0}, {"task": "mnist"}], ids=str)
    def test_of_another_job_is_of_no_interest(self, other):
        """The training process may be late with its news: of the same round, from before the coordinator's restart."""
        job = training()
        key = replace(KEY, **other)
        assert job.trained(key, update(), 20.0) == []
        assert job.training_failed(key, FailReason.TRAINING, "") == []
        assert job.progress(key, 3, 5) == []
        assert job.state is JobState.TRAINING


class TestUpload:
    def grant(self, have: bytes = b"\x00") -> Grant:
        """Two chunks at a time."""
        return Grant(DIGEST, 2, have)

    def test_sends_within_the_window(self):
        """A grant opens it, acknowledgements move it."""
        job = uploading()
        assert job.on_message(said(self.grant()), 21.0) == [SendChunk(0), SendChunk(1)]
        assert job.on_message(said(Ack(DIGEST, b"\x01")), 22.0) == [SendChunk(2)]

    def test_is_offered_again_when_it_is_quiet(self):
        """Or at once when the link is back, but not before it is time to come again."""
        job = uploading()
        assert job.next_deadline() == 23.0
        assert said_back(job.tick(23.0)) == [Offer(update())]
        job.reconnected(24.0)
        assert said_back(job.tick(24.0)) == [Offer(update())]
        assert job.on_message(said(RetryAfter(DIGEST, 9.0)), 25.0) == []
        assert (job.tick(33.9), said_back(job.tick(34.0))) == ([], [Offer(update())])

    @pytest.mark.parametrize(
        ("end", "outcome"),
        [
            (Committed(DIGEST), "committed"),
            (Refused(DIGEST, RefuseReason.LATE, "too bad"), "refused: late too bad"),
            (Refused(DIGEST, RefuseReason.LATE), "refused: late"),
            (Cancel("late"), "cancelled: late"),
        ],
    )
    def test_ends_when_the_coordinator_says_so(self, end, outcome):
        """Only then is the update forgotten."""
        job = uploading()
        assert job.on_message(said(end), 21.0) == [EndJob(outcome, committed=KEY if outcome == "committed" else None)]
        assert (job.state, job.status(), job.next_deadline()) == (JobState.IDLE, None, None)
        assert job.tick(1e6) == []

    @pytest.mark.parametrize(
        "body",
        [
            Committed("00" * 32),
            Refused("00" * 32, RefuseReason.LATE),
            Ack("00" * 32, b""),
            RetryAfter("00" * 32, 1.0),
            Need(DIGEST, b"\x01"),
        ],
        ids=lambda body: type(body).__name__,
    )
    def test_takes_no_answer_to_another_update(self, body):
        """The digest must be its own; and what is no answer to an offer is none, whatever its digest."""
        job = uploading()
        assert job.on_message(said(body), 21.0) == []
        assert job.state is JobState.UPLOADING

    def test_goes_on_after_a_restart(self):
        """The same offer, as if nothing had been."""
        job = Job(max_blob_bytes=10_000)
        job.resume(KEY, update(), 5.0)
        assert job.status() == JobStatus(RUN, 1, 1, JobPhase.UPLOADING)
        assert said_back(job.tick(5.0)) == [Offer(update())]
        assert job.on_message(said(Committed(DIGEST)), 6.0) == [EndJob("committed", committed=KEY)]

    def test_a_bitmap_that_does_not_fit_is_a_wire_error(self):
        """The job stays as it was."""
        job = uploading()
        with pytest.raises(WireError):
            job.on_message(said(self.grant(b"")), 21.0)
        assert job.on_message(said(self.grant()), 22.0) == [SendChunk(0), SendChunk(1)]


class TestNews:
    """What comes at the wrong time, or is meant for another job, changes nothing."""

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("other", [{"run": "run-2"}, {"round_number": 2}, {"epoch": 0}, {"epoch": 2}], ids=str)
    def test_for_another_job_is_passed_over(self, make, other):
        """Not even a cancel of the same round from before the coordinator's restart ends this job."""
        job = make()
        state = job.state
        for body in (Cancel("late"), Committed(DIGEST), Refused(DIGEST, RefuseReason.STALE_EPOCH)):
            assert job.on_message(said(body, **other), 21.0) == []
        assert job.state is state

    @pytest.mark.parametrize("make", [downloading, training], ids=lambda make: make.__name__)
    def test_of_an_upload_means_nothing_before_there_is_one(self, make):
        """Only a cancel ends the job then."""
        job = make()
        for body in (Committed(DIGEST), Grant(DIGEST, 4, b"\x00")):
            assert job.on_message(said(body), 13.0) == []
        assert EndJob("cancelled: late") in job.on_message(said(Cancel("late")), 13.0)
        assert job.state is JobState.IDLE

    def test_that_only_a_device_says_is_nothing(self):
        """A coordinator that speaks out of its part is not answered."""
        assert uploading().on_message(said(Accept(10)), 21.0) == []

    def test_for_an_idle_device_is_nothing(self):
        """Call-backs of a job that has ended meanwhile come to nothing, too."""
        job = Job(max_blob_bytes=10_000)
        assert job.on_message(said(Cancel("late")), 1.0) == []
        assert job.on_chunk(cut(BLOB, model(), 0), 1.0) == []
        assert here(job, range(3), 1.0) == []
        assert job.damaged() + job.progress(KEY, 1, 2) + job.give_up(FailReason.TRAINING, "") == []
        assert job.trained(KEY, update(), 1.0) + job.training_failed(KEY, FailReason.TRAINING, "") == []
        job.reconnected(1.0)
        assert (job.tick(1e6), job.next_deadline(), job.status()) == ([], None, None)
