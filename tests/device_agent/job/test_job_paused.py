"""A job whose owner needs the device for a while: what rests, what runs on, and how it is taken up again."""

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
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunked_transfer import Bitmap, SendChunk, cut
from fedpatch.shared.wire.messages import Ack, Cancel, Committed, Failed, Grant, Offer, Progress, RetryAfter
from fedpatch.shared.wire.reason_codes import Condition, FailReason, JobPhase
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
        job.on_chunk(cut(BLOB, model(), 0), 11.0)
        assert job.pause() == [StopDownload()]
        assert job.on_chunk(cut(BLOB, model(), 1), 12.0) == []
        assert job.tick(60.0) == []
        assert job.go_on(61.0) == [StartDownload((model(),))]
        here(job, frozenset({0}), 61.0)
        for index in (1, 2):
            job.on_chunk(cut(BLOB, model(), index), 62.0)
        assert job.state is JobState.TRAINING

    def test_of_training_lets_it_wait(self):
        """The coordinator hears that it goes on."""
        job = training()
        assert job.pause() == [PauseTraining()]
        go_on, *told = job.go_on(60.0)
        assert go_on == ContinueTraining()
        assert said_back(told) == [Progress(JobPhase.TRAINING, 0, 1)]

    def test_of_an_upload_sends_nothing_whatever_is_granted(self):
        """It is offered again afterwards, and not before."""
        job = uploading()
        assert job.pause() == []
        for body in (Grant(DIGEST, 4, NOTHING_YET), Ack(DIGEST, NOTHING_YET), RetryAfter(DIGEST, 1.0)):
            assert job.on_message(said(body), 21.0) == []
        assert job.next_deadline() is None
        assert job.tick(500.0) == []
        assert said_back(job.go_on(501.0)) == [Offer(update())]
        assert sends(job.on_message(said(Grant(DIGEST, 4, NOTHING_YET)), 502.0)) == [0, 1, 2, 3]

    def test_holds_for_an_update_that_was_finished_meanwhile(self):
        """The last step may have been taken already: the update is kept, and offered later."""
        job = training()
        job.pause()
        assert job.trained(KEY, update(), 20.0) == [SpoolUpdate(KEY, update(), REQUEST)]
        assert said_back(job.go_on(60.0)) == [Offer(update())]

    def test_outlasts_a_coordinator(self):
        """The newer epoch hears that the device is on it, and nothing more until it may go on."""
        job = uploading()
        job.pause()
        assert [type(body).__name__ for body in said_back(ask(job, epoch=2))] == ["Accept"]
        assert job.tick(60.0) == []
        assert said_back(job.go_on(61.0)) == [Offer(update())]

    @pytest.mark.parametrize("make", [downloading, training])
    def test_does_not_move_the_deadline(self, make):
        """The round does not wait."""
        job = make()
        job.pause()
        assert job.next_deadline() == 310.0
        assert said_back(job.tick(310.0)) == [Failed(FailReason.DEADLINE)]

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_is_over_with_its_job(self, make):
        """The next one is not born paused."""
        job = make()
        job.pause()
        assert isinstance(job.on_message(said(Cancel("late")), 30.0)[-1], EndJob)
        assert not job.paused
        assert job.go_on(31.0) == []
        assert any(isinstance(effect, StartDownload) for effect in ask(job, 2, now=32.0))

    @pytest.mark.parametrize("make", IN_EACH_STATE)
    def test_twice_is_once(self, make):
        """And to go on without a pause is nothing."""
        job = make()
        assert job.go_on(30.0) == []
        job.pause()
        assert job.pause() == []
        job.go_on(31.0)
        assert job.go_on(32.0) == []

    def test_of_nothing_is_nothing(self):
        """Nor does an idle device stay paused."""
        job = Job(max_blob_bytes=10_000)
        assert job.pause() == []
        assert not job.paused


def test_a_deadline_that_passes_in_a_pause_names_the_condition():
    """A longer deadline would be no help: the plug would."""
    job = training()
    job.pause(Condition.NOT_CHARGING)
    assert said_back(job.tick(310.0)) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]


def test_what_is_committed_during_a_pause_is_committed():
    """The chunks had all arrived."""
    job = uploading()
    job.pause()
    assert job.on_message(said(Committed(DIGEST)), 30.0)[-1] == EndJob("committed", committed=KEY)


def test_an_abandoned_job_names_the_condition():
    """The coordinator hears which preference; the words are for the owner."""
    job = training()
    job.pause()
    failed, stop, forget = job.give_up(FailReason.UNWILLING, "unplugged", Condition.NOT_CHARGING)
    assert said_back([failed]) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]
    assert stop == StopTraining()
    assert forget == EndJob("gave up: unwilling: unplugged", gave_up=True)
