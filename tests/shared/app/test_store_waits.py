"""The requests to stores that wait: what is logged of them, and when they are abandoned."""

from __future__ import annotations

import pytest

from fedpatch.shared.app.store_waits import BLOBS, ENDING_S, REGISTRY, SILENT_AFTER_S, StoreWaits

S3, DB = "s3://fleet at store:9000", "postgresql://db/fleet"


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_silent_store_is_logged_at_growing_intervals_and_when_it_answers_again(
    clock: Clock, caplog: pytest.LogCaptureFixture
):
    waits = StoreWaits(clock)
    with waits.request(BLOBS, S3, 90.0):
        for clock.now in range(0, 90, 2):
            waits.look()
    for clock.now in (90.0, 91.0):
        waits.look()
    assert caplog.messages == [
        f"{S3}: no answer for 10 s; waiting for 1 min 30 s at most",
        f"{S3}: no answer for 30 s; waiting for 1 min 30 s at most",
        f"{S3}: answers again after 1 min 30 s",
    ]


def test_request_that_failed_is_no_answer(clock: Clock, caplog: pytest.LogCaptureFixture):
    waits = StoreWaits(clock)
    with pytest.raises(OSError), waits.request(BLOBS, S3, 90.0):
        clock.now = SILENT_AFTER_S
        waits.look()
        raise OSError
    clock.now = 20.0
    waits.look()
    assert [line for line in caplog.messages if "again" in line] == []


def test_words_name_each_silent_store_once_with_its_oldest_request(clock: Clock):
    waits = StoreWaits(clock)
    with waits.request(BLOBS, S3, 90.0):
        clock.now = 5.0
        with waits.request(BLOBS, S3, 90.0):
            clock.now = 9.0
            assert waits.words() == ""
            clock.now = 12.0
            with waits.request(REGISTRY, DB, 60.0):
                clock.now = 20.0
                assert waits.words() == f"{S3} has not answered for 20 s"
                assert (waits.silent_s(BLOBS), waits.silent_s(REGISTRY)) == (20.0, 8.0)
                clock.now = 22.0
                assert waits.words() == f"{S3} has not answered for 22 s; {DB} has not answered for 10 s"
    assert (waits.words(), waits.silent_s(BLOBS)) == ("", 0.0)


def test_request_is_abandoned_after_its_patience_or_soon_after_the_process_shall_end(clock: Clock):
    waits, calls = StoreWaits(clock), []
    with waits.request(REGISTRY, DB, 60.0, lambda: calls.append("abandoned")):
        clock.now = 59.0
        waits.look()
        assert calls == []
        clock.now = 60.0
        waits.look()
    assert calls == ["abandoned"]
    with waits.request(REGISTRY, DB, 60.0, lambda: calls.append("ended")):
        waits.set()
        waits.look()
        assert "ended" not in calls
        clock.now += ENDING_S
        waits.look()
    assert calls[-1] == "ended"
