"""The requests to stores that wait: what is logged of them, and when they are abandoned."""

from __future__ import annotations

import pytest

from fedpatch.shared.app.store_waits import BLOBS, ENDING_S, REGISTRY, SILENT_AFTER_S, StoreWaits

S3, DB = "s3://fleet at store:9000", "postgresql://db/fleet"


def test_silent_store_is_logged_at_growing_intervals_and_when_it_answers_again(caplog: pytest.LogCaptureFixture):
    waits = StoreWaits(lambda: 0.0)
    with waits.request(BLOBS, S3, 90.0):
        for now in range(0, 90, 2):
            waits.look(float(now))
    waits.look(90.0)
    waits.look(91.0)
    assert caplog.messages == [
        f"{S3}: no answer for 10 s; waiting for 1 min 30 s at most",
        f"{S3}: no answer for 30 s; waiting for 1 min 30 s at most",
        f"{S3}: answers again after 1 min 30 s",
    ]


def test_request_that_failed_is_no_answer(caplog: pytest.LogCaptureFixture):
    waits = StoreWaits(lambda: 0.0)
    with pytest.raises(OSError), waits.request(BLOBS, S3, 90.0):
        waits.look(SILENT_AFTER_S)
        raise OSError
    waits.look(20.0)
    assert [line for line in caplog.messages if "again" in line] == []


def test_words_name_each_silent_store_once_with_its_oldest_request():
    times = iter([0.0, 5.0, 12.0])
    waits = StoreWaits(lambda: next(times))
    with waits.request(BLOBS, S3, 90.0), waits.request(BLOBS, S3, 90.0), waits.request(REGISTRY, DB, 60.0):
        assert waits.words(9.0) == ""
        assert waits.words(20.0) == f"{S3} has not answered for 20 s"
        assert waits.words(22.0) == f"{S3} has not answered for 22 s; {DB} has not answered for 10 s"
        assert (waits.silent_s(BLOBS, 20.0), waits.silent_s(REGISTRY, 20.0)) == (20.0, 8.0)
    assert (waits.words(99.0), waits.silent_s(BLOBS, 99.0)) == ("", 0.0)


def test_request_is_abandoned_after_its_patience_or_soon_after_the_process_shall_end():
    waits, calls = StoreWaits(lambda: 0.0), []
    with waits.request(REGISTRY, DB, 60.0, lambda: calls.append("abandoned")):
        waits.look(59.0)
        assert calls == []
        waits.look(60.0)
    assert calls == ["abandoned"]
    with waits.request(REGISTRY, DB, 60.0, lambda: calls.append("ended")):
        waits.set()
        waits.look(10.0)
        assert "ended" not in calls
        waits.look(10.0 + ENDING_S)
    assert calls[-1] == "ended"
