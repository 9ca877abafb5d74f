"""Feeding trackers: the order of calls, errors that switch one off, and one that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.trackers import tracking as module
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun
from fedpatch.shared.trackers.tracking import Tracking, check_names, finite, make_trackers, split_name, tracking

RUN = TrackedRun("run-1", "run", "digits", {"rounds": 2}, "1")
ROUNDS = [TrackedRound(number, {"user_accuracy": number / 10}, {}) for number in (1, 2)]


class Recorder:
    """A tracker that records its calls; `fail` may raise or wait in one of them."""

    def __init__(self, fail: Callable[[str], None] = lambda name: None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._fail = fail

    def _note(self, name: str, value: object) -> None:
        self._fail(name)
        self.calls.append((name, value))

    def begin(self, run: TrackedRun) -> None:
        self._note("begin", run)

    def log(self, round: TrackedRound) -> None:
        self._note("log", round)

    def end(self, outcome: str) -> None:
        self._note("end", outcome)


def failing_in(call: str) -> Callable[[str], None]:
    def fail(name: str) -> None:
        if name == call:
            raise OSError(f"no connection in {name}\nsecond line")

    return fail


ALL = [("begin", RUN), ("log", ROUNDS[0]), ("log", ROUNDS[1]), ("end", "max_rounds")]


def follow(trackers: dict[str, Recorder], timeout_s: float = 100.0) -> list[str]:
    """Log all rounds to the trackers; return the printed lines."""
    lines: list[str] = []
    followed = Tracking(trackers, RUN, lines.append)
    for one in ROUNDS:
        followed.log(one)
    followed.end("max_rounds", timeout_s)
    return lines


def test_tracker_gets_begin_rounds_and_end_in_order():
    tracker = Recorder()
    assert follow({"mine": tracker}) == []
    assert tracker.calls == ALL


@pytest.mark.parametrize(("call", "before"), [("begin", 0), ("log", 1), ("end", 3)])
def test_tracker_that_raises_is_switched_off_with_one_line_and_others_go_on(call, before):
    bad, good = Recorder(failing_in(call)), Recorder()
    lines = follow({"bad": bad, "good": good})
    assert lines == [f"tracker bad is switched off for this run: OSError: no connection in {call}"]
    assert bad.calls == ALL[:before]
    assert good.calls == ALL


def test_tracker_that_hangs_delays_neither_rounds_nor_the_end():
    release = threading.Event()

    def wait(name: str) -> None:
        if name == "log":
            release.wait()

    hanging, good = Recorder(wait), Recorder()
    lines = follow({"hanging": hanging, "good": good}, timeout_s=0.1)
    release.set()
    assert lines == ["tracker hanging: not finished after 0.1 s; its last rounds may be missing"]
    assert good.calls == ALL


def test_error_in_the_block_ends_the_tracking_as_failed(monkeypatch):
    tracker = Recorder()
    monkeypatch.setattr(module, "make_trackers", lambda texts: {"mine": tracker})
    with pytest.raises(ValueError), tracking(["mine"], lambda: RUN, print, lambda: "max_rounds"):
        raise ValueError
    assert tracker.calls[-1] == ("end", "failed")


def test_no_trackers_start_no_thread():
    before = threading.active_count()
    with tracking([], lambda: RUN, print, lambda: "") as followed:
        assert followed is None
        assert threading.active_count() == before


def test_name_may_have_a_place_with_colons():
    assert split_name("mlflow:sqlite:///a.db") == ("mlflow", "sqlite:///a.db")
    assert split_name("tensorboard") == ("tensorboard", "")


def test_unknown_and_repeated_trackers_are_errors():
    with pytest.raises(UsageError, match="unknown tracker 'tensorbord'"):
        check_names(["tensorbord"])
    with pytest.raises(UsageError, match="named twice"):
        check_names(["mlflow", "mlflow:sqlite:///b.db"])


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboard.summary"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_tracker_without_its_package_names_the_extra(monkeypatch, name, module):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'fedpatch\[{name}\]'"):
        make_trackers([name])


def test_figures_that_are_no_numbers_are_left_out():
    assert finite({"a": 1, "b": None, "c": float("nan"), "d": float("inf")}) == {"a": 1.0}
