"""The upload of an update by itself: its messages, and its reactions to messages."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.upload_scheduler import UPLOAD_IDLE_S
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunk_upload import GRANTED_QUIET_S, SendChunk, Upload
from fedpatch.shared.wire.chunks import MAX_QUIET_S, Bitmap, describe
from fedpatch.shared.wire.messages import Ack, Grant, Offer

LONG = describe(bytes(1000), chunk_bytes=100, encoding="fp32", raw_bytes=1000, schema="5c" * 32)


class TestUpload:
    def granted(self, window: int = 4) -> Upload:
        """An upload that was offered and granted at time 0."""
        upload = Upload(LONG, 0.0)
        assert upload.tick(0.0) == [Offer(LONG)]
        sent = upload.on_grant(Grant(LONG.digest, window, bytes(2)), 0.0)
        assert sent == [SendChunk(i) for i in range(window)]
        return upload

    def ack(self, *indices: int) -> Ack:
        return Ack(LONG.digest, Bitmap(10, indices).to_bytes())

    def test_offer_is_repeated_with_growing_pauses_until_answered(self):
        upload, at = Upload(LONG, 5.0), []
        for _ in range(7):
            at.append(upload.next_deadline())
            assert upload.tick(at[-1] - 0.01) == []
            assert upload.tick(at[-1]) == [Offer(LONG)]
        assert at == [5.0, 8.0, 14.0, 26.0, 50.0, 80.0, 110.0]

    def test_acknowledgements_move_the_window(self):
        upload = self.granted()
        assert upload.on_ack(self.ack(0, 2), 1.0) == [SendChunk(4), SendChunk(5)]
        assert upload.on_ack(self.ack(0, 2), 1.0) == []
        assert upload.next_deadline() == 4.0

    def test_acknowledgement_before_a_grant_sends_nothing(self):
        assert Upload(LONG, 0.0).on_ack(self.ack(0), 1.0) == []

    def test_a_window_wider_than_the_rest_sends_the_rest(self):
        upload = self.granted()
        assert upload.on_grant(Grant(LONG.digest, 64, bytes(2)), 0.5) == [SendChunk(i) for i in range(4, 10)]

    def test_a_grant_that_comes_twice_opens_one_window(self):
        """Two offers crossed their grants: chunks in flight are not sent again."""
        upload = self.granted()
        assert upload.on_grant(Grant(LONG.digest, 4, bytes(2)), 0.1) == []

    def test_chunks_in_flight_count_as_lost_after_a_pause(self):
        """The answer to the offer after a pause has the chunks that arrived; the others are sent again, within the window."""
        upload = self.granted()
        assert upload.on_ack(self.ack(0), 1.0) == [SendChunk(4)]
        assert upload.tick(4.0) == [Offer(LONG)]
        assert upload.on_ack(self.ack(0, 1), 4.1) == []
        grant = Grant(LONG.digest, 4, Bitmap(10, (0, 1)).to_bytes())
        assert upload.on_grant(grant, 4.2) == [SendChunk(i) for i in (2, 3, 4, 5)]

    def test_a_coordinator_that_forgot_gets_everything_again(self):
        """After an offer, the grant's bitmap decides, even if it lacks chunks that were acknowledged."""
        upload = self.granted()
        upload.on_ack(self.ack(0, 1, 2, 3), 1.0)
        upload.tick(10.0)
        again = upload.on_grant(Grant(LONG.digest, 4, bytes(2)), 10.0)
        assert again == [SendChunk(i) for i in range(4)]

    def test_upload_waits_after_retry_after(self):
        upload = self.granted()
        upload.on_retry_after(7.0, 1.0)
        assert upload.next_deadline() == 8.0
        upload.on_retry_after(0.0, 1.0)
        assert upload.next_deadline() == pytest.approx(1.1)

    def test_speaks_often_while_it_holds_a_place(self):
        """A granted upload sends several messages before its slot can expire; a waiting upload need not."""
        upload = self.granted()
        pauses = [self.next_pause(upload) for _ in range(4)]
        assert pauses == [GRANTED_QUIET_S] * 4
        assert 4 * GRANTED_QUIET_S < UPLOAD_IDLE_S
        upload.on_retry_after(50.0, upload.next_deadline())
        assert [self.next_pause(upload) for _ in range(4)] == [GRANTED_QUIET_S, 10.0, 20.0, MAX_QUIET_S]

    def next_pause(self, upload: Upload) -> float:
        """Return the time from the next offer to the one after it."""
        at = upload.next_deadline()
        assert upload.tick(at) == [Offer(LONG)]
        return upload.next_deadline() - at

    def test_offers_at_once_when_the_link_is_back(self):
        upload = self.granted()
        for _ in range(4):
            upload.tick(upload.next_deadline())
        upload.on_reconnect(100.0)
        assert upload.tick(100.0) == [Offer(LONG)]
        assert upload.next_deadline() == 103.0

    def test_a_bitmap_that_does_not_fit_is_a_wire_error(self):
        upload = self.granted()
        for bad in (b"", b"\x00\xff"):
            with pytest.raises(WireError):
                upload.on_ack(Ack(LONG.digest, bad), 1.0)
            with pytest.raises(WireError):
                upload.on_grant(Grant(LONG.digest, 10, bad), 1.0)
        assert upload.on_ack(self.ack(), 1.0) == []
