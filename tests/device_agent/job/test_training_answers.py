"""Answers of the training process to a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import UNSET

from fedpatch.device_agent.job.job_effects import (
    EndJob,
    JobState,
    SendMessage,
    SpoolUpdate,
    StopTraining,
)
from fedpatch.device_agent.job.job_events import (
    TrainingFailed,
    TrainingProgressed,
    UpdateTrained,
)
from fedpatch.shared.wire.messages import (
    Failed,
    JobStatus,
    Offer,
    Progress,
)
from fedpatch.shared.wire.reason_codes import (
    FailCause,
    FailReason,
    JobPhase,
)
from tests.device_agent.jobs import (
    KEY,
    REQUEST,
    replies,
    training,
)
from tests.support.specs import RUN, update


class TestTraining:
    def test_progress_is_sent_each_15_s_until_the_deadline(self):
        job = training()
        seen = [replies(job.handle(TrainingProgressed(KEY, 3, 5), now)) for now in (20.0, 27.0, 40.0, 50.0)]
        sent = [Progress(JobPhase.TRAINING, 3, 5)]
        assert seen == [[], sent, [], sent]
        assert job.next_deadline() == 310.0
        assert job.tick(309.9) == []

    def test_trained_update_is_spooled_before_it_is_offered(self):
        job = training()
        spool, offer = job.handle(UpdateTrained(KEY, update()), 20.0)
        assert (spool, replies([offer])) == (SpoolUpdate(KEY, update(), REQUEST), [Offer(update())])
        assert job.status() == JobStatus(RUN, 1, 1, JobPhase.UPLOADING)

    @pytest.mark.parametrize("cause", [UNSET, FailCause.MEMORY])
    def test_training_fails_for_a_known_cause_sends_the_cause(self, cause):
        effects = training().handle(TrainingFailed(KEY, FailReason.TRAINING, "9 GB", cause), 20.0)
        assert replies(effects) == [Failed(FailReason.TRAINING, cause=cause)]

    def test_training_fails_sends_reason_without_detail(self):
        effects = training().handle(TrainingFailed(KEY, FailReason.NOT_FINITE, "secret.weight holds nan"), 20.0)
        assert replies(effects) == [Failed(FailReason.NOT_FINITE)]
        assert [type(effect) for effect in effects] == [SendMessage, StopTraining, EndJob]
        assert effects[-1] == EndJob("gave up: not_finite: secret.weight holds nan", gave_up=True)

    @pytest.mark.parametrize("other", [{"run": "run-2"}, {"round": 2}, {"epoch": 0}, {"task": "mnist"}], ids=str)
    def test_answers_about_another_job_are_ignored(self, other):
        """The training process may report late, on the same round from before the coordinator's restart."""
        job = training()
        key = replace(KEY, **other)
        assert job.handle(UpdateTrained(key, update()), 20.0) == []
        assert job.handle(TrainingFailed(key, FailReason.TRAINING, ""), 20.0) == []
        assert job.handle(TrainingProgressed(key, 3, 5), 20.0) == []
        assert job.state is JobState.TRAINING
