"""One work request on the device, from its arrival to `committed`, as a state machine without IO.

job_transitions has the table; job_context has the fields.
"""

from __future__ import annotations

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, JobKey, JobState
from fedpatch.device_agent.job.job_events import JobEvent, Tick
from fedpatch.device_agent.job.job_transitions import ILLEGAL, TRANSITIONS, kind_of
from fedpatch.device_agent.job.round_deadline import next_deadline
from fedpatch.device_agent.job.unfit_request import refusal_of
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, SUM_ENCODING
from fedpatch.shared.wire.messages import Decline, Envelope, JobStatus, TaskCapability, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason, JobPhase


class Job:
    """The state machine: `handle` takes an event, `tick` lets time pass, and both return effects to perform in order.

    Call `tick` at `next_deadline` at the latest. Times are monotonic seconds.

    Args:
        max_blob_bytes: Largest model that the device accepts.
        ask_to_send: Whether an update waits for OwnerResumed before it is offered; meanwhile `awaits_clearance` is true.
        masking: The device's part in masked groups; None where it declines masked rounds.
        sums: Whether the device is a relay, whose update in a masked round is the sum of its site.

    Example:
        >>> job = Job(max_blob_bytes=2**20)
        >>> job.state, job.next_deadline(), job.tick(now=0.0)
        (<JobState.IDLE: 'idle'>, None, [])
    """

    def __init__(
        self,
        *,
        max_blob_bytes: int,
        ask_to_send: bool = False,
        masking: MaskingRounds | None = None,
        sums: bool = False,
    ) -> None:
        masked = (SUM_ENCODING,) if sums else MASKED_ENCODINGS if masking is not None else ()
        self._context = JobContext(
            max_blob_bytes=max_blob_bytes, ask_to_send=ask_to_send, masking=masking, masked_encodings=masked
        )

    @property
    def state(self) -> JobState:
        """State of the job."""
        return self._context.state

    @property
    def key(self) -> JobKey | None:
        """The current work; None while idle."""
        return self._context.key

    @property
    def request(self) -> WorkRequest | None:
        """Request of the current work; None while idle."""
        return self._context.request

    @property
    def paused(self) -> bool:
        """True if the owner has paused the work."""
        return self._context.paused

    @property
    def awaits_clearance(self) -> bool:
        """True if the finished update waits for OwnerResumed before it is offered."""
        return self._context.awaits_clearance

    @property
    def max_blob_bytes(self) -> int:
        """Largest model that the device accepts."""
        return self._context.max_blob_bytes

    def is_on(self, key: JobKey) -> bool:
        """Return whether a request for `key` asks for the current work, in its epoch or in a newer one."""
        return self._context.is_on(key)

    def status(self) -> JobStatus | None:
        """The job as the device's presence reports it; None while idle."""
        if self.key is None:
            return None
        return JobStatus(self.key.run, self.key.epoch, self.key.round, JobPhase(self.state.value))

    def next_deadline(self) -> float | None:
        """The next time at which `tick` is due; None if there is none."""
        return next_deadline(self._context)

    def handle(self, event: JobEvent, now: float) -> list[Effect]:
        """Take one event and return its effects, in order.

        Args:
            event: A message, the completion of an effect, or a decision of the owner.
            now: Monotonic seconds.

        Raises:
            WireError: A message holds a bitmap that does not fit the update. The job stays as it was.
            IllegalTransition: The table has no such event in this state. The job stays as it was.
        """
        job = self._context
        transition = TRANSITIONS.get((job.state, kind_of(event)), ILLEGAL)
        if transition is ILLEGAL:
            raise IllegalTransition(f"job: {type(event).__name__} in {job.state}")
        if transition.concerns is not None and not transition.concerns(job, event):
            return []
        return transition.handle(job, event, now)

    def tick(self, now: float) -> list[Effect]:
        """Let time pass until `now`, in monotonic seconds."""
        return self.handle(Tick(), now)

    def refuses(self, task: str, request: WorkRequest, tasks: tuple[TaskCapability, ...]) -> bool:
        """Return whether a new request would be declined whatever the owner decides (unfit_request)."""
        job = self._context
        return refusal_of(task, request, tasks, job.max_blob_bytes, job.masked_encodings) is not None

    def decline_unknown(self, envelope: Envelope, detail: str) -> list[Effect]:
        """Return the answer to a work request with a term of a later version; the present job continues."""
        key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
        return [self._context.reply(Decline(DeclineReason.UNSUPPORTED, detail[:500]), key)]
