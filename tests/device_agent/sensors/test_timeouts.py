"""A question has a time limit, and is never asked twice at once."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from fedpatch.device_agent.sensors import timeouts
from fedpatch.device_agent.sensors.timeouts import FactUnavailable, TimedQuestion

PATIENCE_S = 60.0


class NoTape(FactUnavailable):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (FactUnavailable("no bus"), FactUnavailable, "no bus"),
        (NoTape("no tape"), NoTape, "no tape"),
        (FileNotFoundError(2, "No such file", "/x"), FactUnavailable, "/x: No such file"),
        (ZeroDivisionError("by zero"), FactUnavailable, "ZeroDivisionError: by zero"),
    ],
)
def test_failed_source_gives_its_reason(error, kind, why):
    def ask():
        raise error

    source = TimedQuestion("it", ask)
    source.begin()
    with pytest.raises(kind, match=why):
        source.answer(PATIENCE_S)


def test_a_source_that_hangs_is_given_up_and_not_asked_twice():
    """Its thread cannot be ended, so there is one at most; once the thread has ended, the source is asked again."""
    go, asked, begun, over = threading.Event(), [], threading.Event(), threading.Event()

    def ask():
        asked.append(threading.current_thread())
        begun.set()
        go.wait()
        over.set()
        return len(asked)

    source = TimedQuestion("the tape", ask)
    source.begin()
    assert begun.wait(PATIENCE_S)
    for _ in range(3):
        with pytest.raises(FactUnavailable, match="the tape has not answered for"):
            source.answer(0.01)
        source.begin()
    assert len(asked) == 1
    go.set()
    assert over.wait(PATIENCE_S)
    asked[0].join(PATIENCE_S)
    with pytest.raises(FactUnavailable):  # a late answer belongs to an earlier question, and may be out of date
        source.answer(PATIENCE_S)
    source.begin()
    assert source.answer(PATIENCE_S) == 2


class Slow:
    """A source with a given duration and answer."""

    def __init__(self) -> None:
        self.go, self.answer = threading.Event(), ""

    def __call__(self) -> str:
        assert self.go.wait(PATIENCE_S)
        if not self.answer:
            raise FactUnavailable("the tape is torn")
        return self.answer


@pytest.mark.parametrize("answer", ["", "nothing"])
def test_a_source_that_took_long_for_nothing_is_not_waited_for_until_it_answers(answer, monkeypatch):
    """The source may end without an answer each time; only one request waits for it."""
    monkeypatch.setattr(timeouts, "QUICK_S", -1.0)  # any duration counts as long
    slow = Slow()
    source = TimedQuestion("the tape", slow, lambda found: found == "nothing")
    slow.answer = answer
    slow.go.set()
    source.begin()
    with contextlib.suppress(FactUnavailable):
        source.answer(PATIENCE_S)
    slow.go.clear()
    slow.answer = "good"
    source.begin()
    with pytest.raises(FactUnavailable, match="the tape has not answered for"):
        source.answer(PATIENCE_S)
    slow.go.set()
    assert _until_answered(source) == "good"
    source.begin()
    assert source.answer(PATIENCE_S) == "good"


def _until_answered(source: TimedQuestion[[], str]) -> str:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(FactUnavailable):
            return source.answer(0.0)
        time.sleep(0.01)
    raise AssertionError("what has come back is not taken")


def test_a_source_that_fails_at_once_is_waited_for_again():
    slow = Slow()
    source = TimedQuestion("the tape", slow)
    slow.go.set()
    source.begin()
    with pytest.raises(FactUnavailable, match="torn"):
        source.answer(PATIENCE_S)
    slow.answer = "good"
    source.begin()
    assert source.answer(PATIENCE_S) == "good"


def test_a_source_that_was_never_asked_has_no_answer():
    with pytest.raises(FactUnavailable, match="was not asked"):
        TimedQuestion("it", lambda: 1).answer(0.0)


def test_a_machine_without_threads_to_spare_is_no_crash(monkeypatch):
    def no_thread(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    source = TimedQuestion("it", lambda: 1)
    source.begin()
    with pytest.raises(FactUnavailable, match="can't start new thread"):
        source.answer(PATIENCE_S)
