"""The steps of a job in a masked round: keys, the masking of the trained vector, its base, and answers to the group.

device_agent.masking has the state machine of the group. Its state is saved before a message that depends on it is sent.
"""

from __future__ import annotations

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import (
    Effect,
    ForgetMasking,
    JobKey,
    MaskUpdate,
    ReportFailure,
    SaveBase,
    SaveMasking,
    SendAfterSave,
)
from fedpatch.device_agent.job.job_end import give_up
from fedpatch.device_agent.job.job_events import MessageReceived, VectorTrained
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingBody
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.messages import Accept, Decline, Manifest, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason

BASE_SPENT = Decline(DeclineReason.BASE_SPENT, "this device has offered a masked update from these values already")
"""The answer to a second masked round from the same values. The coordinator moves the values of later rounds."""


def refusal_of_keys(job: JobContext, key: JobKey, request: WorkRequest) -> Decline | None:
    """Make the keys of a masked round; return the decline where this device must make none.

    Args:
        key: The work, whose round the keys are for.
        request: Its request, with the terms of the round.
    """
    if job.masking is None or request.secure is None or request.evaluates:
        return None
    try:
        keys = job.masking.begin(_round_name(key), request)
    except WireError as error:
        return Decline(DeclineReason.UNSUPPORTED, str(error)[:500])
    return BASE_SPENT if keys is None else None


def acceptance(job: JobContext) -> list[Effect]:
    """Return `accept`, in a masked round with the keys; the number of examples is then part of the sum only."""
    assert job.key is not None
    assert job.request is not None
    if job.masking is None or job.request.evaluates:
        return [job.reply(Accept(job.num_examples))]
    if job.request.secure is None:
        accept = job.reply(Accept(job.num_examples))
        forgotten, job.masking.state = job.masking.state, None
        return [ForgetMasking(), accept] if forgotten is not None else [accept]
    keys = job.masking.begin(_round_name(job.key), job.request)
    assert job.masking.state is not None
    return [SendAfterSave(job.masking.state, job.reply(Accept(1, keys)).envelope)]


def training_attempt(job: JobContext) -> bytes:
    """Return the secret of the attempt at a masked round, for batch order and rounding; empty without masks."""
    if job.masking is None or job.request is None or not job.request.masks:
        return b""
    return job.masking.training_secret()


def on_vector_trained(job: JobContext, event: VectorTrained, now: float) -> list[Effect]:
    """Mask the vector once the inbox of the group is there too."""
    job.vector_waits = True
    return _mask_when_ready(job)


def on_group_message(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """Answer the group, in any state: shares are revealed after the job has ended."""
    envelope, body = event.envelope, event.envelope.body
    assert isinstance(body, MaskingBody)
    if job.masking is None:
        return []
    answer = job.masking.handle(RoundName(envelope.task, envelope.run, envelope.round), body)
    if answer.problem:
        return [ReportFailure(f"masking: {type(body).__name__.lower()} refused: {answer.problem}")]
    if answer.state is None:
        return []
    if answer.body is None:
        return [SaveMasking(answer.state), *_mask_when_ready(job)]
    about = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
    return [SendAfterSave(answer.state, job.reply(answer.body, about).envelope)]


def note_masked_update(job: JobContext, manifest: Manifest) -> list[Effect]:
    """Return what must be on the disk before a masked update is offered; nothing for another update.

    Raises:
        WireError: The update must not leave this device.
    """
    if job.masking is None or job.request is None or job.request.secure is None:
        return []
    state = job.masking.note_update(manifest.digest)
    if state is None:
        raise WireError("another update was masked under the keys of this round, or from its base")
    # The base last: after a crash between the two, the device repeats this very update under its keys.
    return [SaveMasking(state), *([SaveBase(state.base)] if state.base else ())]


def _mask_when_ready(job: JobContext) -> list[Effect]:
    """Mask the vector once both the vector and the inbox of the group are there."""
    if not job.vector_waits or job.masking is None or not job.masking.is_ready:
        return []
    state = job.masking.state
    assert state is not None
    assert job.key is not None
    assert job.request is not None
    assert job.training_key is not None
    if state.name != _round_name(job.key):
        return []
    job.vector_waits = False
    try:
        masks = job.masking.masks()
    except WireError as error:
        return give_up(job, FailReason.MASKING, str(error))
    noise = None if job.request.privacy is None else job.masking.noise(job.request.privacy)
    return [MaskUpdate(job.training_key, job.request, state.group.context, masks, noise)]


def _round_name(key: JobKey) -> RoundName:
    return RoundName(key.task, key.run, key.round)
