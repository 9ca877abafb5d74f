"""The fields of a job, and its numbered replies. The files of its steps change them; Job (job_state_machine) owns them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedpatch.device_agent.job.answered_requests import AnsweredRequests
from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import JobKey, JobState, SendMessage
from fedpatch.device_agent.job.training_progress import TrainingProgress
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.shared.wire.chunk_download import Download
from fedpatch.shared.wire.chunk_upload import Upload
from fedpatch.shared.wire.messages import Body, Envelope, WorkRequest
from fedpatch.shared.wire.reason_codes import Condition


@dataclass(kw_only=True)
class JobContext:
    """The fields of a job. Times are monotonic seconds.

    Attributes:
        max_blob_bytes: Largest model that the device accepts.
        ask_to_send: Whether an update waits for OwnerResumed before it is offered.
        masking: The device's part in masked groups; None where it declines masked rounds.
        masked_encodings: Encodings of the device's updates in masked rounds.
        state: State of the job.
        key: The current work; None while idle.
        request: Its request; None while idle.
        deadline: Time at which the round stops waiting for the update.
        accepted_at: Time at which the request was accepted.
        num_examples: Training examples of the last accepted task.
        paused: Whether the owner has paused the work.
        paused_for: The preference that is not met in the last pause.
        awaits_clearance: Whether the finished update waits for OwnerResumed before it is offered.
        plan: How the downloaded blobs lead to the model of the request; None for a restored update.
        download: The download, while chunks are taken.
        training_key: The key in the last training command: the answers repeat it, also after the job has continued in a newer
            epoch.
        progress: The steps of the last training; None before the first one.
        vector_waits: Whether the trained vector of a masked round waits for the inbox of its group.
        upload: The upload; None in other states than UPLOADING.
        answers: The last answers to requests.
        last_message_id: Number of the last reply.
    """

    max_blob_bytes: int
    ask_to_send: bool = False
    masking: MaskingRounds | None = None
    masked_encodings: tuple[str, ...] = ()
    state: JobState = JobState.IDLE
    key: JobKey | None = None
    request: WorkRequest | None = None
    deadline: float = 0.0
    accepted_at: float = 0.0
    num_examples: int = 1
    paused: bool = False
    paused_for: Condition | None = None
    awaits_clearance: bool = False
    plan: DownloadPlan | None = None
    download: Download | None = None
    training_key: JobKey | None = None
    progress: TrainingProgress | None = None
    vector_waits: bool = False
    upload: Upload | None = None
    answers: AnsweredRequests = field(default_factory=AnsweredRequests)
    last_message_id: int = 0

    @property
    def is_held(self) -> bool:
        """True if the update must not be offered or sent for now."""
        return self.paused or self.awaits_clearance

    def is_on(self, key: JobKey) -> bool:
        """Return whether a request for `key` asks for the current work, in its epoch or in a newer one."""
        return self.key is not None and key.epoch >= self.key.epoch and replace(key, epoch=self.key.epoch) == self.key

    def reply(self, body: Body, key: JobKey | None = None) -> SendMessage:
        """Return a numbered message about the current work, or about the request `key`."""
        about = key or self.key
        assert about is not None
        self.last_message_id += 1
        return SendMessage(
            Envelope(
                body, id=self.last_message_id, task=about.task, run=about.run, epoch=about.epoch, round=about.round
            )
        )
