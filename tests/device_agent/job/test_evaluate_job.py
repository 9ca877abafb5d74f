"""The job of a request that only measures: one answer, which stays the same, and no upload."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.job.download_plan import expected_bytes, plan_download
from fedpatch.device_agent.job.job_effects import EndJob, JobState, SendMessage, StartTraining
from fedpatch.device_agent.job.job_events import ChunkReceived, ModelEvaluated
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import MAX_BLOB_BYTES, Accept, Evaluation, WorkRequest
from fedpatch.shared.wire.plan_terms import parse_phases
from tests.device_agent.jobs import BLOB, KEY, REQUEST, here, replies, requested
from tests.support.specs import envelope_of, model

ASKED = replace(REQUEST, evaluate=True)
MEASURED = Evaluation(model().digest, 0.5, 20, 0.25)


def measuring(request: WorkRequest = ASKED) -> Job:
    """A job that measures since second 12."""
    job = Job(max_blob_bytes=10_000)
    [accept] = replies(job.handle(requested(envelope_of(request)), 10.0))
    assert isinstance(accept, Accept)
    here(job, frozenset(), 10.0)
    last = [job.handle(ChunkReceived(cut(BLOB, model(), index)), 12.0) for index in range(3)][-1]
    assert [type(effect) for effect in last][-1] is StartTraining
    assert replies(last) == []
    return job


def test_the_measure_is_the_one_answer_and_ends_the_job_without_an_upload():
    job = measuring()
    effects = job.handle(ModelEvaluated(KEY, MEASURED), 13.0)
    assert [type(effect) for effect in effects] == [SendMessage, EndJob]  # StopTraining would stop a finished model
    assert replies(effects) == [MEASURED]
    assert effects[-1] == EndJob("measured")  # no finished model
    assert (job.state, job.next_deadline()) == (JobState.IDLE, None)


def test_device_that_makes_a_finished_model_names_the_job_of_that_model():
    job = measuring(replace(ASKED, plan=replace(ASKED.plan, finish=parse_phases("private"))))
    assert job.handle(ModelEvaluated(KEY, MEASURED), 13.0)[-1] == EndJob("measured", finished=KEY)


def test_a_repeated_request_gets_the_same_answer_and_a_newer_epoch_a_new_measure():
    job = measuring()
    job.handle(ModelEvaluated(KEY, MEASURED), 13.0)
    assert replies(job.handle(requested(envelope_of(ASKED)), 14.0)) == [MEASURED]
    [again] = replies(job.handle(requested(envelope_of(ASKED, epoch=2)), 15.0))
    assert isinstance(again, Accept)


def test_a_measure_of_another_round_changes_nothing():
    job = measuring()
    assert job.handle(ModelEvaluated(replace(KEY, round=9), MEASURED), 13.0) == []
    assert job.state is JobState.TRAINING


def test_expected_traffic_has_no_update():
    plan = plan_download(ASKED, "", MAX_BLOB_BYTES)
    assert expected_bytes(ASKED, plan) == model().size_bytes < expected_bytes(REQUEST, plan)


def test_measure_of_the_model_that_is_held_takes_no_traffic():
    assert expected_bytes(ASKED, plan_download(ASKED, model().digest, MAX_BLOB_BYTES)) == 0
