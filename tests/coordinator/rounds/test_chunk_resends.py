"""Chunks that are published again."""

from __future__ import annotations

from fedpatch.coordinator.rounds.chunk_resends import FAN_OUT_BYTES_S, REPUBLISH_S, ChunkResender
from fedpatch.coordinator.rounds.run_effects import ResendChunks
from fedpatch.shared.wire.chunks import Bitmap, describe
from fedpatch.shared.wire.messages import Need
from tests.coordinator.round_protocols import Bench
from tests.support.specs import model


def test_chunks_that_several_devices_miss_are_published_once():
    bench = Bench("abc").accept_all()
    need = Need(model().digest, Bitmap(model().chunk_count, [0, 2]).to_bytes())
    asked = [bench.receive(device, need, now=2.0) for device in "abc"]
    assert asked == [[ResendChunks(model().digest, (0, 2))], [], []]
    assert bench.receive("a", need, now=2.0 + REPUBLISH_S) == [ResendChunks(model().digest, (0, 2))]


def test_nothing_is_sent_again_while_the_first_sending_is_under_way():
    """A broker needs seconds to send to a thousand devices, and less time for fewer waiting devices."""
    large = describe(bytes(800_000), chunk_bytes=100_000, encoding="fp32", raw_bytes=800_000, schema="0" * 64)
    need = Need(large.digest, Bitmap(large.chunk_count, [1, 5]).to_bytes())
    takes_s = 1000 * large.size_bytes / FAN_OUT_BYTES_S
    repairs = ChunkResender(large, now=10.0)
    assert repairs.due(need, 10.0 + takes_s / 2, waiting=1000) == ()
    assert repairs.due(need, 10.0 + takes_s / 2, waiting=100) == (1, 5)
    assert repairs.due(need, 10.0 + takes_s, waiting=1000) == ()
    assert repairs.due(need, 10.0 + 2 * takes_s, waiting=1000) == (1, 5)


def test_bitmap_that_does_not_fit_the_model_requests_no_chunk():
    repairs = ChunkResender(model())
    for missing in (b"", b"\xff", b"\xff" * 9):
        assert repairs.due(Need(model().digest, missing), 100.0) == ()
    assert repairs.due(Need("00" * 32, Bitmap(model().chunk_count, [1]).to_bytes()), 100.0) == ()
