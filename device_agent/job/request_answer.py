"""The answer to a work request: `accept`, `decline`, the former answer once more, or the same work in a newer epoch."""

from __future__ import annotations

from fedpatch.device_agent.job.decline_compatibility import for_coordinator
from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, JobKey, JobState, SpoolUpdate, StartDownload
from fedpatch.device_agent.job.job_end import end_job
from fedpatch.device_agent.job.job_events import WorkRequested
from fedpatch.device_agent.job.masked_steps import acceptance, refusal_of_keys
from fedpatch.device_agent.job.model_download import change_plan
from fedpatch.device_agent.job.same_work import continues
from fedpatch.device_agent.job.unfit_request import refusal_of
from fedpatch.device_agent.job.update_upload import offer_when_due
from fedpatch.shared.wire.chunk_upload import Upload
from fedpatch.shared.wire.messages import Decline, TaskCapability, WorkRequest


def on_work_requested(job: JobContext, event: WorkRequested, now: float) -> list[Effect]:
    """Answer a request. An accepted one replaces the present work; a declined one leaves it as it is."""
    envelope, tasks = event.envelope, event.tasks
    request = envelope.body
    assert isinstance(request, WorkRequest)
    key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
    if job.key == key:
        return _repeat_answers(job)
    if (answer := job.answers.final(key)) is not None:
        return [job.reply(answer, key)]
    # A decline while the task is being loaded would count against the device. The coordinator repeats the request.
    if job.answers.is_superseded(key, idle=job.key is None) or not tasks:
        return []
    if continues(job.key, job.request, key, request, downloading=job.state is JobState.DOWNLOADING):
        return _continue_in_epoch(job, key, request, event, now)
    if declined := _reason_to_decline(job, key, request, event):
        declined = for_coordinator(declined, request)
        # The current work continues: its own coordinator cancels it when it is not needed.
        job.answers.declined(key, declined)
        return [job.reply(declined, key)]
    effects = [] if job.key is None else end_job(job, "superseded")
    job.state, job.plan = JobState.DOWNLOADING, event.plan
    job.accepted_at = now
    _accept(job, key, request, tasks, now)
    return [*effects, *acceptance(job), StartDownload(event.plan.blobs)]


def _reason_to_decline(job: JobContext, key: JobKey, request: WorkRequest, event: WorkRequested) -> Decline | None:
    """Find a reason to decline; if there is none, make the keys of a masked round."""
    refusal = refusal_of(key.task, request, event.tasks, job.max_blob_bytes, job.masked_encodings)
    if refusal is not None:
        return refusal
    decision = event.decision
    if not decision.accept:
        return Decline(decision.reason, decision.why[:500], decision.condition, decision.retry_after_s)
    return refusal_of_keys(job, key, request)


def _accept(job: JobContext, key: JobKey, request: WorkRequest, tasks: tuple[TaskCapability, ...], now: float) -> None:
    job.key, job.request = key, request
    job.deadline = now + request.deadline_s
    here = (t.num_examples for t in tasks if t.task == key.task and t.num_examples)
    job.num_examples = next(here, job.num_examples)
    job.answers.accepted(key)


def _continue_in_epoch(
    job: JobContext, key: JobKey, request: WorkRequest, event: WorkRequested, now: float
) -> list[Effect]:
    """Continue the same work in the newer epoch of a restarted coordinator."""
    _accept(job, key, request, event.tasks, now)
    if job.upload is not None:
        job.upload = Upload(job.upload.manifest, now)
        accept = acceptance(job)
        return [SpoolUpdate(key, job.upload.manifest, request), *accept, *offer_when_due(job, now)]
    effects = _repeat_answers(job)
    if job.state is JobState.DOWNLOADING:
        effects += change_plan(job, event.plan, now)
    return effects


def _repeat_answers(job: JobContext) -> list[Effect]:
    """Answer a request once more: the first answers may be lost. An upload repeats its offers by itself."""
    if job.state is JobState.UPLOADING:
        return []
    accept = acceptance(job)
    if job.state is not JobState.TRAINING:
        return accept
    assert job.progress is not None
    return [*accept, job.reply(job.progress.message())]
