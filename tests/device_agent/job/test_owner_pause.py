"""Pauses of a job for its owner, and updates that wait for clearance."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    Effect,
    EndJob,
    JobState,
    PauseTraining,
    SpoolUpdate,
    StartDownload,
    StopDownload,
    StopTraining,
)
from fedpatch.device_agent.job.job_events import (
    ChunkReceived,
    MessageReceived,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    UpdateRestored,
    UpdateTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import Bitmap, cut
from fedpatch.shared.wire.messages import (
    Ack,
    Cancel,
    Committed,
    Failed,
    Grant,
    Offer,
    Progress,
    RetryAfter,
)
from fedpatch.shared.wire.reason_codes import (
    Condition,
    FailReason,
    JobPhase,
)
from tests.device_agent.jobs import (
    BLOB,
    DIGEST,
    IN_EACH_STATE,
    KEY,
    REQUEST,
    ask,
    downloading,
    here,
    replies,
    training,
    uploading,
)
from tests.support.specs import envelope_of, model, update

NOTHING_YET = Bitmap(4).to_bytes()


def sends(effects: list[Effect]) -> list[int]:
    """Indices of the chunks that are sent."""
    return [effect.index for effect in effects if isinstance(effect, SendChunk)]


class TestPause:
    def test_paused_download_stops_and_resumes_with_the_rest(self):
        job = downloading()
        job.handle(ChunkReceived(cut(BLOB, model(), 0)), 11.0)
        assert job.handle(OwnerPaused(), 20.0) == [StopDownload()]
        assert job.handle(ChunkReceived(cut(BLOB, model(), 1)), 12.0) == []
        assert job.tick(60.0) == []
        assert job.handle(OwnerResumed(), 61.0) == [StartDownload((model(),))]
        here(job, frozenset({0}), 61.0)
        for index in (1, 2):
            job.handle(ChunkReceived(cut(BLOB, model(), index)), 62.0)
        assert job.state is JobState.TRAINING

    def test_paused_training_waits_and_reports_when_resumed(self):
        job = training()
        assert job.handle(OwnerPaused(), 20.0) == [PauseTraining()]
        go_on, *rest = job.handle(OwnerResumed(), 60.0)
        assert go_on == ContinueTraining()
        assert replies(rest) == [Progress(JobPhase.TRAINING, 0, 1)]

    def test_paused_upload_sends_nothing(self):
        job = uploading()
        assert job.handle(OwnerPaused(), 20.0) == []
        for body in (Grant(DIGEST, 4, NOTHING_YET), Ack(DIGEST, NOTHING_YET), RetryAfter(DIGEST, 1.0)):
            assert job.handle(MessageReceived(envelope_of(body)), 21.0) == []
        assert job.next_deadline() is None
        assert job.tick(500.0) == []
        assert replies(job.handle(OwnerResumed(), 501.0)) == [Offer(update())]
        assert sends(job.handle(MessageReceived(envelope_of(Grant(DIGEST, 4, NOTHING_YET))), 502.0)) == [0, 1, 2, 3]

    def test_update_trained_in_a_pause_is_offered_after_it(self):
        job = training()
        job.handle(OwnerPaused(), 20.0)
        assert job.handle(UpdateTrained(KEY, update()), 20.0) == [SpoolUpdate(KEY, update(), REQUEST)]
        assert replies(job.handle(OwnerResumed(), 60.0)) == [Offer(update())]

    def test_paused_upload_accepts_newer_epoch_and_stays_paused(self):
        job = uploading()
        job.handle(OwnerPaused(), 20.0)
        assert [type(body).__name__ for body in replies(ask(job, epoch=2))] == ["Accept"]
        assert job.tick(60.0) == []
        assert replies(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]

    @pytest.mark.parametrize("make", [downloading, training])
    def test_pause_leaves_the_deadline(self, make):
        job = make()
        job.handle(OwnerPaused(), 20.0)
        assert job.next_deadline() == 310.0
        assert replies(job.tick(310.0)) == [Failed(FailReason.DEADLINE)]

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_job_ends_in_a_pause_ends_the_pause(self, make):
        job = make()
        job.handle(OwnerPaused(), 20.0)
        assert isinstance(job.handle(MessageReceived(envelope_of(Cancel("late"))), 30.0)[-1], EndJob)
        assert not job.paused
        assert job.handle(OwnerResumed(), 31.0) == []
        assert any(isinstance(effect, StartDownload) for effect in ask(job, 2, now=32.0))

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_second_pause_or_resume_has_no_effect(self, make):
        job = make()
        assert job.handle(OwnerResumed(), 30.0) == []
        job.handle(OwnerPaused(), 20.0)
        assert job.handle(OwnerPaused(), 20.0) == []
        job.handle(OwnerResumed(), 31.0)
        assert job.handle(OwnerResumed(), 32.0) == []

    def test_pause_while_idle_has_no_effect(self):
        job = Job(max_blob_bytes=10_000)
        assert job.handle(OwnerPaused(), 20.0) == []
        assert not job.paused


class TestClearance:
    """A job whose owner clears each update before it is sent."""

    def trained(self, *, paused: bool = False) -> Job:
        job = Job(max_blob_bytes=10_000, ask_to_send=True)
        ask(job)
        here(job, range(3), 10.0)
        if paused:
            job.handle(OwnerPaused(), 15.0)
        assert job.handle(UpdateTrained(KEY, update()), 20.0) == [SpoolUpdate(KEY, update(), REQUEST)]
        return job

    def test_trained_update_awaits_clearance_and_is_then_offered(self):
        job = self.trained()
        assert (job.awaits_clearance, job.next_deadline(), job.tick(60.0)) == (True, None, [])
        assert job.handle(MessageReceived(envelope_of(Grant(DIGEST, 4, NOTHING_YET))), 60.0) == []
        assert replies(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]
        assert not job.awaits_clearance

    def test_restored_update_awaits_clearance(self):
        job = Job(max_blob_bytes=10_000, ask_to_send=True)
        job.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        assert (job.awaits_clearance, job.tick(60.0)) == (True, [])

    def test_pause_ends_the_wait_for_clearance(self):
        """The end of the pause clears the update."""
        trained_before, trained_within = self.trained(), self.trained(paused=True)
        trained_before.handle(OwnerPaused(), 20.0)
        for job in (trained_before, trained_within):
            assert (job.paused, job.awaits_clearance) == (True, False)
            assert replies(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]

    def test_end_of_the_job_ends_the_wait_for_clearance(self):
        job = self.trained()
        job.handle(MessageReceived(envelope_of(Cancel("late"))), 30.0)
        assert (job.state, job.awaits_clearance) == (JobState.IDLE, False)


def test_deadline_in_a_pause_sends_its_condition():
    job = training()
    job.handle(OwnerPaused(Condition.NOT_CHARGING), 20.0)
    assert replies(job.tick(310.0)) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]


def test_committed_in_a_pause_ends_the_job():
    job = uploading()
    job.handle(OwnerPaused(), 20.0)
    assert job.handle(MessageReceived(envelope_of(Committed(DIGEST))), 30.0)[-1] == EndJob("committed", committed=KEY)


def test_abandoned_job_sends_its_condition():
    job = training()
    job.handle(OwnerPaused(), 20.0)
    failed, stop, forget = job.handle(OwnerAbandoned("unplugged", Condition.NOT_CHARGING), 20.0)
    assert replies([failed]) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]
    assert stop == StopTraining()
    assert forget == EndJob("stopped for its owner: unplugged")
