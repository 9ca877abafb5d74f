"""The loop of effects."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    Effect,
    EndJob,
    PauseTraining,
    ReportFailure,
    SendMessage,
    SpoolUpdate,
    StopDownload,
    StopTraining,
)
from fedpatch.device_agent.job.job_events import (
    EffectFailed,
    JobEvent,
    UpdateTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.reason_codes import (
    FailReason,
)
from tests.device_agent.jobs import (
    KEY,
    training,
)
from tests.support.specs import update


class Handler:
    """Records effects; the first one returns an event."""

    def __init__(self, event: JobEvent) -> None:
        self.performed: list[Effect] = []
        self.event = event

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        """Perform one effect (EffectHandler)."""
        self.performed.append(effect)
        return [self.event] if len(self.performed) == 1 else []


@pytest.mark.parametrize(
    ("make", "event", "then"),
    [
        (training, UpdateTrained(KEY, update()), [StopDownload, SpoolUpdate, SendMessage]),
        (training, EffectFailed(FailReason.STORAGE, "disk"), [SendMessage, StopTraining, EndJob]),
        (lambda: Job(max_blob_bytes=1), EffectFailed(FailReason.STORAGE, "disk"), [StopDownload, ReportFailure]),
    ],
    ids=["succeeds", "fails", "fails while idle"],
)
def test_run_effects_only_a_failed_effect_of_a_job_replaces_the_effects_after_it(make, event, then):
    handler = Handler(event)
    drive_job(make(), [PauseTraining(), StopDownload()], handler, lambda: 20.0)
    assert [type(effect) for effect in handler.performed] == [PauseTraining, *then]
