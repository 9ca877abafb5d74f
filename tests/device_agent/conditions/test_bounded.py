"""A question is waited for only so long, and never asked twice at once."""

from __future__ import annotations

import threading

import pytest

from device_agent.conditions.bounded import Bounded, CannotTell

PATIENCE_S = 60.0


def test_an_answer_comes_back():
    """What the source said, to the question that was asked."""
    double = Bounded("double", lambda number: 2 * number)
    double.begin(21)
    assert double.answer(PATIENCE_S) == 42


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (CannotTell("no bus"), "no bus"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "/x: No such file or directory"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_source_that_fails_says_why(error, why):
    """Even where it fails by a mistake of ours."""

    def ask():
        raise error

    source = Bounded("it", ask)
    source.begin()
    with pytest.raises(CannotTell, match=why):
        source.answer(PATIENCE_S)


def test_a_source_that_hangs_is_given_up_and_not_asked_twice():
    """Its thread cannot be ended, so there is one at most; once it has come back, it is asked anew."""
    go, asked, over = threading.Event(), [], threading.Event()

    def ask():
        asked.append(threading.current_thread())
        go.wait()
        over.set()
        return len(asked)

    source = Bounded("the tape", ask)
    source.begin()
    for _ in range(3):
        with pytest.raises(CannotTell, match="the tape has not answered for"):
            source.answer(0.01)
        source.begin()
    assert len(asked) == 1
    go.set()
    assert over.wait(PATIENCE_S)
    asked[0].join(PATIENCE_S)
    with pytest.raises(CannotTell):  # what comes late answers an earlier question, and may not be so any more
        source.answer(PATIENCE_S)
    source.begin()
    assert source.answer(PATIENCE_S) == 2


def test_a_source_that_was_never_asked_has_no_answer():
    """There is no answer without a question."""
    with pytest.raises(CannotTell, match="was not asked"):
        Bounded("it", lambda: 1).answer(0.0)


def test_a_machine_without_threads_to_spare_is_no_crash(monkeypatch):
    """The fact is unknown; the device goes on."""

    def no_thread(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    source = Bounded("it", lambda: 1)
    source.begin()
    with pytest.raises(CannotTell, match="can't start new thread"):
        source.answer(PATIENCE_S)
