"""The answers of the training process to a job: progress, a measurement, or a failure. An update goes to update_upload."""

from __future__ import annotations

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import DropHeldModel, Effect, JobState
from fedpatch.device_agent.job.job_end import end_job, give_up
from fedpatch.device_agent.job.job_events import ModelEvaluated, TrainingFailed, TrainingProgressed
from fedpatch.device_agent.job.model_download import download_whole_model
from fedpatch.shared.wire.reason_codes import FailReason


def on_training_progressed(job: JobContext, event: TrainingProgressed, now: float) -> list[Effect]:
    """Note the steps, and send the progress where it is due."""
    assert job.progress is not None
    job.progress.note(event.done, event.total)
    return [job.reply(job.progress.message())] if job.progress.is_due(now) else []


def on_model_evaluated(job: JobContext, event: ModelEvaluated, now: float) -> list[Effect]:
    """Send the measurement. The coordinator asks again if it is lost, and gets the same one."""
    job.answers.gave(event.evaluation)
    job.state = JobState.IDLE  # no training to stop; the process may be making the finished model
    finished = event.key if job.request is not None and job.request.plan.finish else None
    return [job.reply(event.evaluation), *end_job(job, "measured", finished=finished)]


def on_training_failed(job: JobContext, event: TrainingFailed, now: float) -> list[Effect]:
    """Give up, unless the deltas did not lead to the model: then the whole model may."""
    if event.reason is FailReason.DOWNLOAD and job.plan is not None and job.plan.held:
        return [DropHeldModel(event.detail), *download_whole_model(job)]
    return give_up(job, event.reason, event.detail, cause=event.cause)
