"""A coordinator that comes back goes on with its round in a newer epoch: no work is lost, and none is done twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import (
    Effect,
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
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.shared.wire.chunked_transfer import SendChunk, cut
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Committed,
    Failed,
    Grant,
    JobStatus,
    Need,
    Offer,
    Progress,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase
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
from tests.support.specs import CHUNK_BYTES, RUN, TASKS, model, run_spec, said, update

NEW_KEY = replace(KEY, epoch=2)


def asked(job: Job, request: WorkRequest, epoch: int = 2, now: float = 30.0) -> list[Effect]:
    """A request of the newer epoch, whatever the device's owner says by now."""
    return job.on_request(said(request, epoch=epoch), TASKS, AdmissionDecision(False, "no longer"), now)


def spoken_in(effects: list[Effect]) -> set[tuple[str, int, int]]:
    """Run, epoch and round of all that is said."""
    said_so = [effect.envelope for effect in effects if isinstance(effect, SendMessage)]
    return {(one.run, one.epoch, one.round) for one in said_so}


class TestTakeOver:
    """The same run, round and work, asked for in a newer epoch."""

    def test_of_a_download_goes_on_where_it_was(self):
        """Nothing is fetched anew; what is missing is asked for in the new epoch, and soon."""
        job = downloading(have=frozenset({0}))
        for second in range(11, 40):
            job.tick(float(second))
        effects = asked(job, REQUEST, now=40.0)
        assert said_back(effects) == [Accept(10)]
        assert len(effects) == 1
        assert job.status() == JobStatus(RUN, 2, 1, JobPhase.DOWNLOADING)
        need = job.tick(41.0)
        assert (said_back(need), spoken_in(need)) == ([Need(model().digest, b"\x06")], {(RUN, 2, 1)})
        assert job.on_chunk(cut(BLOB, model(), 1), 42.0) == [WriteChunk(cut(BLOB, model(), 1))]
        _, begun, train = job.on_chunk(cut(BLOB, model(), 2), 43.0)
        assert spoken_in([begun]) == {(RUN, 2, 1)}
        assert train == StartTraining(NEW_KEY, REQUEST, download_s=33.0, way=DownloadPlan(model()))

    def test_of_a_download_for_which_room_is_being_made_only_says_so(self):
        """It begins in the new epoch as soon as there is room."""
        job = Job(max_blob_bytes=10_000)
        ask(job)
        assert said_back(asked(job, REQUEST)) == [Accept(10)]
        assert here(job, frozenset(), 31.0) == []
        need = job.tick(32.0)
        assert (said_back(need), spoken_in(need)) == ([Need(model().digest, b"\x07")], {(RUN, 2, 1)})

    def test_of_training_lets_it_go_on(self):
        """The training process answers under the key that it was given; the coordinator hears of it in its own epoch."""
        job = training()
        job.progress(KEY, 2, 5)
        effects = asked(job, REQUEST)
        assert said_back(effects) == [Accept(10), Progress(JobPhase.TRAINING, 2, 5)]
        assert spoken_in(effects) == {(RUN, 2, 1)}
        progress = job.progress(KEY, 3, 5)
        assert (said_back(progress), spoken_in(progress)) == ([Progress(JobPhase.TRAINING, 3, 5)], {(RUN, 2, 1)})
        spool, offer = job.trained(KEY, update(), 40.0)
        assert (spool, said_back([offer])) == (SpoolUpdate(NEW_KEY, update(), REQUEST), [Offer(update())])
        assert spoken_in([offer]) == {(RUN, 2, 1)}

    def test_of_training_keeps_its_failure_for_the_new_epoch(self):
        """And news under the new key, which the training process was never given, are none of its."""
        job = training()
        asked(job, REQUEST)
        assert job.training_failed(NEW_KEY, FailReason.TRAINING, "") == []
        failed = job.training_failed(KEY, FailReason.NOT_FINITE, "")
        assert spoken_in(failed) == {(RUN, 2, 1)}

    def test_of_an_update_offers_it_again_at_once(self):
        """A reboot finds the new epoch in the spool's note; a grant of the old one is none any more."""
        job = uploading()
        job.on_message(said(Grant(DIGEST, 4, b"\x00")), 21.0)
        request = replace(REQUEST, deadline_s=100.0)
        spool, *answers = asked(job, request)
        assert spool == SpoolUpdate(NEW_KEY, update(), request)
        assert (said_back(answers), spoken_in(answers)) == ([Accept(10), Offer(update())], {(RUN, 2, 1)})
        assert job.on_message(said(Grant(DIGEST, 1, b"\x00")), 31.0) == []
        assert job.on_message(said(Grant(DIGEST, 1, b"\x00"), epoch=2), 31.0) == [SendChunk(0)]
        assert job.on_message(said(Committed(DIGEST), epoch=2), 32.0) == [EndJob("committed", committed=NEW_KEY)]

    def test_of_an_update_that_waited_out_a_restart(self):
        """The request lies in the spool beside it, so the device knows what it is of."""
        job = Job(max_blob_bytes=10_000)
        job.resume(KEY, update(), 5.0, REQUEST)
        spool, *answers = asked(job, REQUEST)
        assert (spool, said_back(answers)) == (SpoolUpdate(NEW_KEY, update(), REQUEST), [Accept(10), Offer(update())])

    def test_of_an_update_that_nobody_knows_the_request_of_begins_anew(self):
        """An older version's note does not say from which model it was trained."""
        job = Job(max_blob_bytes=10_000)
        job.resume(KEY, update(), 5.0)
        effects = ask(job, epoch=2)
        assert [type(effect) for effect in effects] == [EndJob, SendMessage, StartDownload]

    @pytest.mark.parametrize("make", [downloading, training], ids=lambda make: make.__name__)
    def test_brings_its_own_deadline(self, make):
        """The coordinator says how much time is left of the round."""
        job = make()
        asked(job, replace(REQUEST, deadline_s=1000.0), now=30.0)
        assert job.state is not JobState.IDLE
        assert said_back(job.tick(1029.0)) in ([], [Need(model().digest, b"\x07")])
        assert said_back(job.tick(1030.0)) == [Failed(FailReason.DEADLINE)]

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    def test_happens_again_and_again(self, make):
        """A coordinator may be killed any number of times in a round; its older epochs have nothing more to say."""
        job = make()
        for epoch in (2, 3, 7):
            assert said_back(asked(job, REQUEST, epoch))[0] == Accept(10)
            assert asked(job, REQUEST, epoch - 1) == []
            assert job.on_message(said(Cancel("late"), epoch=epoch - 1), 31.0) == []
        assert job.key == replace(KEY, epoch=7)

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize(
        "other",
        [
            replace(REQUEST, private="none"),
            replace(REQUEST, plan=replace(run_spec().plan, seed=3)),
            replace(REQUEST, model=model(b"n" * 250)),
            replace(REQUEST, encoding="fp16"),
            replace(REQUEST, chunk_bytes=2 * CHUNK_BYTES),
        ],
        ids=["private", "plan", "base", "encoding", "chunks"],
    )
    def test_is_only_of_the_same_work(self, make, other):
        """Anything else is another job: the old one is dropped, as it is for a newer round."""
        job = make()
        was_training = job.state is JobState.TRAINING
        effects = job.on_request(said(other, epoch=2), TASKS, AdmissionDecision(True), 30.0)
        assert [type(effect) for effect in effects] == [
            *([StopTraining] * was_training),
            EndJob,
            SendMessage,
            StartDownload,
        ]

    def test_of_a_model_in_other_chunks_matters_only_while_they_come(self):
        """Behind a broker with another limit the same model is cut differently: what has arrived of it does not fit."""
        recut = replace(REQUEST, model=replace(model(), chunk_bytes=50, chunk_count=5))
        job = downloading()
        assert [
            type(effect) for effect in job.on_request(said(recut, epoch=2), TASKS, AdmissionDecision(True), 30.0)
        ] == [
            EndJob,
            SendMessage,
            StartDownload,
        ]
        assert said_back(asked(training(), recut)) == [Accept(10), Progress(JobPhase.TRAINING, 0, 1)]
        assert said_back(asked(uploading(), recut)) == [Accept(10), Offer(update())]

    def test_waits_until_the_device_is_ready(self):
        """As any request does; the coordinator asks again."""
        job = Job(max_blob_bytes=10_000)
        job.resume(KEY, update(), 5.0, REQUEST)
        assert job.on_request(said(REQUEST, epoch=2), (), AdmissionDecision(True), 6.0) == []
        assert job.key == KEY

    def test_lets_a_damaged_model_be_fetched_again(self):
        """What is trained then is trained under the new key."""
        job = training()
        asked(job, REQUEST)
        assert job.damaged() == [StartDownload((model(),))]
        begun, train = here(job, range(3), 40.0)
        assert (spoken_in([begun]), train) == (
            {(RUN, 2, 1)},
            StartTraining(NEW_KEY, REQUEST, download_s=30.0, way=DownloadPlan(model())),
        )
        assert job.trained(KEY, update(), 41.0) == []
        assert isinstance(job.trained(NEW_KEY, update(), 41.0)[0], SpoolUpdate)


_MOVES: dict[str, Callable[[Job, int], list[Effect]]] = {
    "ask": lambda job, epoch: asked(job, REQUEST, epoch),
    "chunk": lambda job, epoch: job.on_chunk(cut(BLOB, model(), epoch % 3), 20.0),
    "all chunks": lambda job, epoch: [e for i in range(3) for e in job.on_chunk(cut(BLOB, model(), i), 20.0)],
    "old": lambda job, epoch: job.on_message(said(Committed(DIGEST), epoch=epoch - 1), 20.0),
    "quiet": lambda job, epoch: job.tick(25.0),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(_MOVES)), st.booleans()), max_size=30))
def test_however_often_a_coordinator_comes_back_a_round_is_trained_once(moves):
    """One download, one training, and every word in the epoch that was last asked for."""
    job = Job(max_blob_bytes=10_000)
    effects = [*ask(job), *here(job, frozenset(), 10.0)]
    epoch, trained = 1, False
    for move, newer in moves:
        if move == "ask" and newer:
            epoch += 1
        done = _MOVES[move](job, epoch)
        assert spoken_in(done) <= {(RUN, epoch, 1)}
        effects += done
        for train in [effect for effect in done if isinstance(effect, StartTraining)]:
            assert not trained
            trained = True
            assert job.progress(replace(train.key, epoch=train.key.epoch + 1), 1, 2) == []
        if trained and job.state is JobState.TRAINING and newer:
            key = next(effect.key for effect in effects if isinstance(effect, StartTraining))
            effects += job.trained(key, update(), 20.0)
    assert sum(isinstance(effect, StartDownload) for effect in effects) == 1
    assert not any(isinstance(effect, EndJob | StopTraining) for effect in effects)
    spooled = [effect.key.epoch for effect in effects if isinstance(effect, SpoolUpdate)]
    assert spooled == sorted(set(spooled))
    assert not spooled or spooled[-1] == epoch
