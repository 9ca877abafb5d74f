"""The transitions of a job as data: everything that decides what an event does in a state is in this table.

    IDLE -> DOWNLOADING -> TRAINING -> UPLOADING -> IDLE

A row has an entry for each state, so the table is total. The coordinator may send anything at any time, and more than once, and
a completion may arrive after its job has ended: those events are IGNORED. Events that only a fault of this program brings are
ILLEGAL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, JobState
from fedpatch.device_agent.job.job_end import on_cancel, on_effect_failed, on_effect_failed_idle
from fedpatch.device_agent.job.job_events import (
    ChunkReceived,
    CoordinatorStarted,
    DownloadByBroker,
    DownloadDamaged,
    DownloadStarted,
    EffectFailed,
    JobEvent,
    LinkRestored,
    MessageReceived,
    ModelEvaluated,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    Tick,
    TrainingFailed,
    TrainingProgressed,
    UpdateRestored,
    UpdateTrained,
    VectorTrained,
    WorkRequested,
)
from fedpatch.device_agent.job.masked_steps import on_group_message, on_vector_trained
from fedpatch.device_agent.job.model_download import (
    on_chunk,
    on_download_by_broker,
    on_download_damaged,
    on_download_started,
)
from fedpatch.device_agent.job.owner_pause import on_owner_abandoned, on_owner_paused, on_owner_resumed
from fedpatch.device_agent.job.reconnect import on_coordinator_started, on_link_restored
from fedpatch.device_agent.job.request_answer import on_work_requested
from fedpatch.device_agent.job.round_deadline import on_time_downloading, on_time_training, on_time_uploading
from fedpatch.device_agent.job.training_answers import on_model_evaluated, on_training_failed, on_training_progressed
from fedpatch.device_agent.job.update_upload import (
    on_ack,
    on_committed,
    on_grant,
    on_refused,
    on_retry_after,
    on_update_restored,
    on_update_trained,
)
from fedpatch.shared.wire.masking_messages import Agreed, Inbox, Roster, Unmask
from fedpatch.shared.wire.messages import Ack, Cancel, Committed, Grant, Refused, RetryAfter

IDLE, DOWNLOADING, TRAINING, UPLOADING = JobState


def _of_this_job(job: JobContext, event: MessageReceived) -> bool:
    """The message is about the present work, in its epoch."""
    envelope, key = event.envelope, job.key
    return key is not None and (envelope.run, envelope.epoch, envelope.round) == (key.run, key.epoch, key.round)


def _of_this_upload(job: JobContext, event: MessageReceived) -> bool:
    """The message is about the update of the present work."""
    body = event.envelope.body
    assert isinstance(body, Grant | Ack | RetryAfter | Committed | Refused)
    return _of_this_job(job, event) and job.upload is not None and body.digest == job.upload.manifest.digest


def _of_this_training(
    job: JobContext,
    event: TrainingProgressed | VectorTrained | UpdateTrained | ModelEvaluated | TrainingFailed,
) -> bool:
    """The answer is about the present training, not about this round in an earlier epoch."""
    return event.key == job.training_key


@dataclass(frozen=True)
class Transition:
    """The effect of an event in a state.

    Attributes:
        handle: Changes the job and returns the effects.
        to: States that may follow; the state may also stay as it is.
        concerns: Whether the event is about the present work; another one is ignored. None: it always is.
    """

    handle: Callable[[JobContext, Any, float], list[Effect]]
    to: tuple[JobState, ...] = ()
    concerns: Callable[[JobContext, Any], bool] | None = None


def _no_effects(job: JobContext, event: JobEvent, now: float) -> list[Effect]:
    return []


IGNORED = Transition(_no_effects)
ILLEGAL = Transition(_no_effects)

_request = Transition(on_work_requested, (DOWNLOADING,))
_reconnect = Transition(on_link_restored)
_restart = Transition(on_coordinator_started)
_group = Transition(on_group_message)
_group_mask = Transition(on_group_message, (IDLE,))
_cancel = Transition(on_cancel, (IDLE,), _of_this_job)
_grant = Transition(on_grant, (), _of_this_upload)
_ack = Transition(on_ack, (), _of_this_upload)
_later = Transition(on_retry_after, (), _of_this_upload)
_committed = Transition(on_committed, (IDLE,), _of_this_upload)
_refused = Transition(on_refused, (IDLE,), _of_this_upload)

_started = Transition(on_download_started, (TRAINING,))
_by_broker = Transition(on_download_by_broker)
_chunk = Transition(on_chunk, (TRAINING,))
_damaged = Transition(on_download_damaged, (DOWNLOADING,))
_progress = Transition(on_training_progressed, (), _of_this_training)
_vector = Transition(on_vector_trained, (IDLE,), _of_this_training)
_trained = Transition(on_update_trained, (UPLOADING, IDLE), _of_this_training)
_measured = Transition(on_model_evaluated, (IDLE,), _of_this_training)
_untrained = Transition(on_training_failed, (IDLE, DOWNLOADING), _of_this_training)
_restored = Transition(on_update_restored, (UPLOADING,))
_failed = Transition(on_effect_failed, (IDLE,))
_failed_idle = Transition(on_effect_failed_idle)

_pause = Transition(on_owner_paused)
_resume = Transition(on_owner_resumed)
_abandon = Transition(on_owner_abandoned, (IDLE,))
_fetches = Transition(on_time_downloading, (IDLE,))
_trains = Transition(on_time_training, (IDLE,))
_offers = Transition(on_time_uploading)

_, X = IGNORED, ILLEGAL

# A row for each event, and for each message that the coordinator sends to a job. A column for each state:
# IDLE, DOWNLOADING, TRAINING, UPLOADING.
ROWS: Mapping[type[Any], tuple[Transition, Transition, Transition, Transition]] = {
    WorkRequested: (_request, _request, _request, _request),
    LinkRestored: (_, _reconnect, _, _reconnect),
    CoordinatorStarted: (_restart, _restart, _restart, _restart),
    Cancel: (_, _cancel, _cancel, _cancel),
    Grant: (_, _, _, _grant),
    Ack: (_, _, _, _ack),
    RetryAfter: (_, _, _, _later),
    Committed: (_, _, _, _committed),
    Refused: (_, _, _, _refused),
    Roster: (_group, _group, _group, _group),
    Inbox: (_group, _group, _group_mask, _group),
    Unmask: (_group, _group, _group, _group),
    Agreed: (_group, _group, _group, _group),
    MessageReceived: (_, _, _, _),  # any other message, of a device or of a later version
    ChunkReceived: (_, _chunk, _, _),
    DownloadStarted: (_, _started, _, _),
    DownloadByBroker: (_, _by_broker, _, _),
    DownloadDamaged: (_, _, _damaged, _),
    TrainingProgressed: (_, _, _progress, _),
    VectorTrained: (_, _, _vector, _),
    UpdateTrained: (_, _, _trained, _),
    ModelEvaluated: (_, _, _measured, _),
    TrainingFailed: (_, _, _untrained, _),
    UpdateRestored: (_restored, X, X, X),
    EffectFailed: (_failed_idle, _failed, _failed, _failed),
    OwnerPaused: (_, _pause, _pause, _pause),
    OwnerResumed: (_, _resume, _resume, _resume),
    OwnerAbandoned: (_, _abandon, _abandon, _abandon),
    Tick: (_, _fetches, _trains, _offers),
}

TRANSITIONS: Mapping[tuple[JobState, type[Any]], Transition] = {
    (state, kind): transition for kind, row in ROWS.items() for state, transition in zip(JobState, row, strict=True)
}


def kind_of(event: JobEvent) -> type[Any]:
    """Return the row of an event; for a message it is that of the body, where the body has one."""
    if isinstance(event, MessageReceived) and (body := type(event.envelope.body)) in ROWS:
        return body
    return type(event)
