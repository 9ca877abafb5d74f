"""The upload of a job: offers, chunks, and its end."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.job_effects import (
    EndJob,
    JobState,
)
from fedpatch.device_agent.job.job_events import (
    CoordinatorStarted,
    LinkRestored,
    MessageReceived,
    UpdateRestored,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.messages import (
    Ack,
    Cancel,
    Committed,
    Grant,
    JobStatus,
    Need,
    Offer,
    Refused,
    RetryAfter,
)
from fedpatch.shared.wire.reason_codes import (
    JobPhase,
    RefuseReason,
)
from tests.device_agent.jobs import (
    DIGEST,
    KEY,
    REQUEST,
    replies,
    uploading,
)
from tests.support.specs import RUN, envelope_of, update


class TestUpload:
    def grant(self, have: bytes = b"\x00") -> Grant:
        """A grant for two chunks at a time."""
        return Grant(DIGEST, 2, have)

    def test_grant_and_ack_send_chunks_within_the_window(self):
        job = uploading()
        assert job.handle(MessageReceived(envelope_of(self.grant())), 21.0) == [SendChunk(0), SendChunk(1)]
        assert job.handle(MessageReceived(envelope_of(Ack(DIGEST, b"\x01"))), 22.0) == [SendChunk(2)]

    @pytest.mark.parametrize("back", [LinkRestored(), CoordinatorStarted()], ids=lambda event: type(event).__name__)
    def test_quiet_upload_is_offered_again_after_a_while_and_when_the_other_side_is_back(self, back):
        job = uploading()
        assert job.next_deadline() == 23.0
        assert replies(job.tick(23.0)) == [Offer(update())]
        job.handle(back, 24.0)
        assert replies(job.tick(24.0)) == [Offer(update())]
        assert job.handle(MessageReceived(envelope_of(RetryAfter(DIGEST, 9.0))), 25.0) == []
        assert (job.tick(33.9), replies(job.tick(34.0))) == ([], [Offer(update())])

    @pytest.mark.parametrize(
        ("end", "outcome"),
        [
            (Committed(DIGEST, 40.0), "committed"),
            (Refused(DIGEST, RefuseReason.LATE, "too bad"), "refused: late too bad"),
            (Refused(DIGEST, RefuseReason.LATE), "refused: late"),
            (Cancel("late"), "cancelled: late"),
        ],
    )
    def test_final_message_ends_the_job(self, end, outcome):
        job = uploading()
        rest_s, committed = (40.0, KEY) if outcome == "committed" else (0.0, None)
        assert job.handle(MessageReceived(envelope_of(end)), 21.0) == [
            EndJob(outcome, rest_s=rest_s, committed=committed)
        ]
        assert (job.state, job.status(), job.next_deadline()) == (JobState.IDLE, None, None)
        assert job.tick(1e6) == []

    @pytest.mark.parametrize(
        "body",
        [
            Committed("00" * 32),
            Refused("00" * 32, RefuseReason.LATE),
            Ack("00" * 32, b""),
            RetryAfter("00" * 32, 1.0),
            Need(DIGEST, b"\x01"),
        ],
        ids=lambda body: type(body).__name__,
    )
    def test_answer_with_another_digest_is_ignored(self, body):
        job = uploading()
        assert job.handle(MessageReceived(envelope_of(body)), 21.0) == []
        assert job.state is JobState.UPLOADING

    def test_restored_update_is_offered(self):
        job = Job(max_blob_bytes=10_000)
        job.handle(UpdateRestored(KEY, update(), REQUEST), 5.0)
        assert job.status() == JobStatus(RUN, 1, 1, JobPhase.UPLOADING)
        assert replies(job.tick(5.0)) == [Offer(update())]
        assert job.handle(MessageReceived(envelope_of(Committed(DIGEST))), 6.0) == [EndJob("committed", committed=KEY)]

    def test_bitmap_of_wrong_length_raises_wire_error(self):
        job = uploading()
        with pytest.raises(WireError):
            job.handle(MessageReceived(envelope_of(self.grant(b""))), 21.0)
        assert job.handle(MessageReceived(envelope_of(self.grant())), 22.0) == [SendChunk(0), SendChunk(1)]
