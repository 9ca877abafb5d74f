"""The job while messages come at the wrong time."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.job_effects import (
    EndJob,
    JobState,
    ReportFailure,
)
from fedpatch.device_agent.job.job_events import (
    ChunkReceived,
    DownloadDamaged,
    DownloadStarted,
    EffectFailed,
    LinkRestored,
    MessageReceived,
    OwnerAbandoned,
    TrainingFailed,
    TrainingProgressed,
    UpdateTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import (
    Accept,
    Cancel,
    Committed,
    Grant,
    Refused,
)
from fedpatch.shared.wire.reason_codes import (
    FailReason,
    RefuseReason,
)
from tests.device_agent.jobs import (
    BLOB,
    DIGEST,
    IN_EACH_STATE,
    KEY,
    downloading,
    training,
    uploading,
)
from tests.support.specs import envelope_of, model, update


class TestUnexpectedMessages:
    """Messages that come at the wrong time or are meant for another job change nothing."""

    @pytest.mark.parametrize("make", IN_EACH_STATE, ids=lambda make: make.__name__)
    @pytest.mark.parametrize("other", [{"run": "run-2"}, {"round_number": 2}, {"epoch": 0}, {"epoch": 2}], ids=str)
    def test_message_to_another_job_is_ignored(self, make, other):
        job = make()
        state = job.state
        for body in (Cancel("late"), Committed(DIGEST), Refused(DIGEST, RefuseReason.STALE_EPOCH)):
            assert job.handle(MessageReceived(envelope_of(body, **other)), 21.0) == []
        assert job.state is state

    @pytest.mark.parametrize("make", [downloading, training], ids=lambda make: make.__name__)
    def test_upload_message_before_upload_is_ignored(self, make):
        job = make()
        for body in (Committed(DIGEST), Grant(DIGEST, 4, b"\x00")):
            assert job.handle(MessageReceived(envelope_of(body)), 13.0) == []
        assert EndJob("cancelled: late") in job.handle(MessageReceived(envelope_of(Cancel("late"))), 13.0)
        assert job.state is JobState.IDLE

    def test_message_of_a_device_is_ignored(self):
        assert uploading().handle(MessageReceived(envelope_of(Accept(10))), 21.0) == []

    def test_events_while_idle_have_no_effect(self):
        """Events of a job that has ended have no effect either; a failed effect is only logged."""
        job = Job(max_blob_bytes=10_000)
        for event in (
            MessageReceived(envelope_of(Cancel("late"))),
            ChunkReceived(cut(BLOB, model(), 0)),
            DownloadStarted({model().digest: range(3)}),
            DownloadDamaged(),
            TrainingProgressed(KEY, 1, 2),
            UpdateTrained(KEY, update()),
            TrainingFailed(KEY, FailReason.TRAINING, ""),
            OwnerAbandoned(""),
        ):
            assert job.handle(event, 1.0) == []
        assert job.handle(EffectFailed(FailReason.STORAGE, "the disk"), 1.0) == [ReportFailure("the disk")]
        job.handle(LinkRestored(), 1.0)
        assert (job.tick(1e6), job.next_deadline(), job.status()) == ([], None, None)
