"""The download of a model by itself: its requests, and its reactions to chunks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedpatch.shared.wire.chunk_download import Download
from fedpatch.shared.wire.chunks import MAX_QUIET_S, Bitmap, Chunk, cut, describe
from fedpatch.shared.wire.messages import Need

SCHEMA = "5c" * 32
BLOB = bytes(range(250))
MANIFEST = describe(BLOB, chunk_bytes=100, encoding="fp32", raw_bytes=250, schema=SCHEMA)
LONG = describe(bytes(1000), chunk_bytes=100, encoding="fp32", raw_bytes=1000, schema=SCHEMA)


class TestDownload:
    def test_asks_for_what_is_missing_when_it_is_quiet(self):
        """Requests come after ever longer pauses, only for missing chunks, and for at most one window."""
        download = Download([LONG], 10.0, have={LONG.digest: (0, 3)}, window=4)
        assert download.tick(10.9) == []
        asked = []
        for _ in range(8):
            at = download.next_deadline()
            assert at is not None
            assert download.tick(at) == [Need(LONG.digest, Bitmap(10, (1, 2, 4, 5)).to_bytes())]
            asked.append(at)
        pauses = [b - a for a, b in pairwise(asked)]
        assert pauses == [2.0, 4.0, 8.0, 16.0, MAX_QUIET_S, MAX_QUIET_S, MAX_QUIET_S]

    def test_a_new_chunk_starts_the_pause_over(self):
        download = Download([MANIFEST], 0.0)
        assert download.take(cut(BLOB, MANIFEST, 2), 0.1)
        assert download.tick(1.1)
        assert download.take(cut(BLOB, MANIFEST, 1), 2.0)
        assert download.next_deadline() == 3.0
        assert not download.take(cut(BLOB, MANIFEST, 1), 2.5)
        assert not download.take(Chunk("00" * 32, 0, 3, bytes(100)), 2.5)
        assert download.next_deadline() == 3.0

    def test_asks_for_the_next_window_at_once_where_chunks_come_only_when_asked_for(self):
        """Only the last chunk of a requested window, without unrequested ones between, starts the next request."""
        download = Download([LONG], 0.0, window=4)
        assert download.tick(1.0) == [Need(LONG.digest, Bitmap(10, range(4)).to_bytes())]
        for index in (3, 1, 0):
            download.take(cut(bytes(1000), LONG, index), 1.1)
        assert download.next_deadline() == pytest.approx(2.1)
        download.take(cut(bytes(1000), LONG, 2), 1.2)
        assert download.next_deadline() == 1.2
        assert download.tick(1.2) == [Need(LONG.digest, Bitmap(10, range(4, 8)).to_bytes())]

    def test_waits_for_the_pause_where_chunks_flow(self):
        """A flow that stalls and resumes also brings the requested chunks; more requests would bring them twice."""
        download = Download([LONG], 0.0, window=4)
        for index in (0, 1):
            download.take(cut(bytes(1000), LONG, index), 0.5)
        assert download.tick(1.5)
        for index in (2, 3, 4, 5):
            download.take(cut(bytes(1000), LONG, index), 2.0)
        assert download.next_deadline() == 3.0

    def test_waits_for_the_pause_when_others_ask_too(self):
        """Unrequested chunks may continue to arrive."""
        download = Download([LONG], 0.0, window=4)
        assert download.tick(1.0)
        for index in (0, 7, 1, 2, 3):
            download.take(cut(bytes(1000), LONG, index), 1.1)
        assert download.next_deadline() == pytest.approx(2.1)

    def test_of_several_blobs_has_one_window_and_one_pause(self):
        """Chunks of any blob count as a flow; missing chunks are requested by blob, in the order of the blobs."""
        download = Download([MANIFEST, LONG], 0.0, have={LONG.digest: [0, 1]}, window=5)
        download.take(cut(bytes(1000), LONG, 2), 0.1)
        assert download.next_deadline() == pytest.approx(1.1)
        wanted = [Need(MANIFEST.digest, b"\x07"), Need(LONG.digest, Bitmap(10, (3, 4)).to_bytes())]
        assert download.tick(1.1) == wanted
        for index in range(3):
            download.take(cut(BLOB, MANIFEST, index), 2.0)
        assert not download.complete
        for index in range(3, 10):
            download.take(cut(bytes(1000), LONG, index), 2.1)
        assert download.complete
        assert download.have == {MANIFEST.digest: set(range(3)), LONG.digest: set(range(10))}

    def test_is_patient_on_a_slow_line(self):
        """If chunks arrive three seconds apart, one second without a chunk means nothing."""
        download = Download([LONG], 0.0)
        download.take(cut(bytes(1000), LONG, 0), 4.0)
        assert download.next_deadline() == 12.0
        download.take(cut(bytes(1000), LONG, 1), 7.0)
        assert download.next_deadline() == 13.0
        download.take(cut(bytes(1000), LONG, 2), 7.2)
        assert download.next_deadline() == pytest.approx(8.2)

    def test_asks_soon_when_the_link_is_back(self):
        """A reconnect shortens a long pause, but does not delay a request that is due soon."""
        download = Download([LONG], 0.0)
        for _ in range(5):
            download.tick(download.next_deadline() or 0.0)
        download.on_reconnect(40.0)
        assert download.next_deadline() == 41.0
        download.on_reconnect(40.5)
        assert download.next_deadline() == 41.0

    def test_asks_only_once_its_chunks_are_no_more_fetched_by_url(self):
        download = Download([MANIFEST], 0.0, asks=False)
        assert (download.next_deadline(), download.tick(100.0)) == (None, [])
        download.ask_from(100.0)
        assert download.next_deadline() == 101.0
        assert download.tick(101.0) == [Need(MANIFEST.digest, b"\x07")]
        assert download.next_deadline() == 103.0

    def test_is_silent_when_whole(self):
        download = Download([MANIFEST], 0.0, have={MANIFEST.digest: range(3)})
        assert download.complete
        assert download.next_deadline() is None
        assert download.tick(1e9) == []
