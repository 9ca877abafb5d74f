"""A job whose owner needs the device for a while: what rests, what runs on, and how it is taken up again."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.effects import (
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
from fedpatch.device_agent.job.events import (
    ChunkReceived,
    MessageReceived,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    UpdateTrained,
)
from fedpatch.device_agent.job.job import Job
from fedpatch.shared.wire.messages import Ack, Cancel, Committed, Failed, Grant, Offer, Progress, RetryAfter
from fedpatch.shared.wire.reason_codes import Condition, FailReason, JobPhase
from fedpatch.shared.wire.transfer import Bitmap, SendChunk, cut
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
from tests.support.specs import model, said, update

NOTHING_YET = Bitmap(4).to_bytes()


def sends(effects: list[Effect]) -> list[int]:
    """Which chunks are sent."""
    return [effect.index for effect in effects if isinstance(effect, SendChunk)]


class TestPause:
    def test_of_a_download_stops_it_and_keeps_what_is_here(self):
        """No chunk is taken and none asked for; later the rest is fetched."""
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

    def test_of_training_lets_it_wait(self):
        """The coordinator hears that it goes on."""
        job = training()
        assert job.handle(OwnerPaused(), 20.0) == [PauseTraining()]
        go_on, *told = job.handle(OwnerResumed(), 60.0)
        assert go_on == ContinueTraining()
        assert said_back(told) == [Progress(JobPhase.TRAINING, 0, 1)]

    def test_of_an_upload_sends_nothing_whatever_is_granted(self):
        """It is offered again afterwards, and not before."""
        job = uploading()
        assert job.handle(OwnerPaused(), 20.0) == []
        for body in (Grant(DIGEST, 4, NOTHING_YET), Ack(DIGEST, NOTHING_YET), RetryAfter(DIGEST, 1.0)):
            assert job.handle(MessageReceived(said(body)), 21.0) == []
        assert job.next_deadline() is None
        assert job.tick(500.0) == []
        assert said_back(job.handle(OwnerResumed(), 501.0)) == [Offer(update())]
        assert sends(job.handle(MessageReceived(said(Grant(DIGEST, 4, NOTHING_YET))), 502.0)) == [0, 1, 2, 3]

    def test_holds_for_an_update_that_was_finished_meanwhile(self):
        """The last step may have been taken already: the update is kept, and offered later."""
        job = training()
        job.handle(OwnerPaused(), 20.0)
        assert job.handle(UpdateTrained(KEY, update()), 20.0) == [SpoolUpdate(KEY, update(), REQUEST)]
        assert said_back(job.handle(OwnerResumed(), 60.0)) == [Offer(update())]

    def test_outlasts_a_coordinator(self):
        """The newer epoch hears that the device is on it, and nothing more until it may go on."""
        job = uploading()
        job.handle(OwnerPaused(), 20.0)
        assert [type(body).__name__ for body in said_back(ask(job, epoch=2))] == ["Accept"]
        assert job.tick(60.0) == []
        assert said_back(job.handle(OwnerResumed(), 61.0)) == [Offer(update())]

    @pytest.mark.parametrize("make", [downloading, training])
    def test_does_not_move_the_deadline(self, make):
        """The round does not wait."""
        job = make()
        job.handle(OwnerPaused(), 20.0)
        assert job.next_deadline() == 310.0
        assert said_back(job.tick(310.0)) == [Failed(FailReason.DEADLINE)]

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_is_over_with_its_job(self, make):
        """The next one is not born paused."""
        job = make()
        job.handle(OwnerPaused(), 20.0)
        assert isinstance(job.handle(MessageReceived(said(Cancel("late"))), 30.0)[-1], EndJob)
        assert not job.paused
        assert job.handle(OwnerResumed(), 31.0) == []
        assert any(isinstance(effect, StartDownload) for effect in ask(job, 2, now=32.0))

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_twice_is_once(self, make):
        """And to go on without a pause is nothing."""
        job = make()
        assert job.handle(OwnerResumed(), 30.0) == []
        job.handle(OwnerPaused(), 20.0)
        assert job.handle(OwnerPaused(), 20.0) == []
        job.handle(OwnerResumed(), 31.0)
        assert job.handle(OwnerResumed(), 32.0) == []

    def test_of_nothing_is_nothing(self):
        """Nor does an idle device stay paused."""
        job = Job(max_blob_bytes=10_000)
        assert job.handle(OwnerPaused(), 20.0) == []
        assert not job.paused


def test_a_deadline_that_passes_in_a_pause_names_the_condition():
    """A longer deadline would be no help: the plug would."""
    job = training()
    job.handle(OwnerPaused(Condition.NOT_CHARGING), 20.0)
    assert said_back(job.tick(310.0)) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]


def test_what_is_committed_during_a_pause_is_committed():
    """The chunks had all arrived."""
    job = uploading()
    job.handle(OwnerPaused(), 20.0)
    assert job.handle(MessageReceived(said(Committed(DIGEST))), 30.0)[-1] == EndJob("committed", committed=KEY)


def test_an_abandoned_job_names_the_condition():
    """The coordinator hears which preference; the words are for the owner."""
    job = training()
    job.handle(OwnerPaused(), 20.0)
    failed, stop, forget = job.handle(OwnerAbandoned("unplugged", Condition.NOT_CHARGING), 20.0)
    assert said_back([failed]) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]
    assert stop == StopTraining()
    assert forget == EndJob("gave up: unwilling: unplugged", gave_up=True)
