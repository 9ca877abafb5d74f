"""The progress output of a running simulation."""

from __future__ import annotations

import io
import re

import pytest

from fedpatch.simulator.experiment.progress import Bar, ProgressLines, make_progress
from fedpatch.simulator.spec.study import Point, Study

STUDY = Study("digits", 4, "fedavg", "affine", "shard:{index}/{count}", 1.0, 100, 0.97, 0, 0.5, 20)


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _point(number: int, seconds: float = 0.5) -> Point:
    return Point(number, 0.9, 0.8, 0.7, 4, None, seconds)


def _lines(study: Study, every_s: float, points: int) -> list[str]:
    stderr, now = io.StringIO(), [0.0]
    with ProgressLines(stderr, study, clock=lambda: now[0]) as lines:
        for number in range(points):
            now[0] += every_s
            lines.show(_point(number))
    return stderr.getvalue().splitlines()


def test_outside_a_terminal_a_line_comes_every_ten_seconds_at_most():
    shown = _lines(STUDY, 4.0, 10)
    assert [line.split(":")[0] for line in shown] == ["round 2/100", "round 5/100", "round 8/100"]


def test_slow_rounds_have_a_line_each():
    assert len(_lines(STUDY, 60.0, 3)) == 3


def test_line_has_accuracy_target_pace_and_remaining_time():
    shown = _lines(STUDY, 60.0, 3)
    assert shown[0] == "round 0/100: UA 0.900 (target 0.970)"
    assert shown[2] == "round 2/100: UA 0.900 (target 0.970), 500 ms a round, at most 49 s left"


def test_without_a_target_what_is_left_is_an_estimate():
    study = Study.from_dict(STUDY.to_dict() | {"target_ua": None})
    assert _lines(study, 60.0, 2)[1] == "round 1/100: UA 0.900, 500 ms a round, 50 s left"


def test_the_pace_is_that_of_the_last_rounds():
    stderr, now = io.StringIO(), [0.0]
    lines = ProgressLines(stderr, STUDY, clock=lambda: now[0])
    lines.show(_point(1, seconds=1000.0))
    for number in range(2, 20):
        lines.show(_point(number, seconds=2.0))
    now[0] = 60.0
    lines.show(_point(20, seconds=2.0))
    assert "2.0 s a round, at most 2 min 40 s left" in stderr.getvalue()


def test_in_a_terminal_a_bar_is_drawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stderr = Terminal()
    with make_progress(stderr, STUDY) as progress:
        assert isinstance(progress, Bar)
        progress.say("goes on after round 4 [sic]")
        progress.show(_point(5))
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr.getvalue())
    assert "goes on after round 4 [sic]\n" in drawn
    assert re.search(r"round 5/100 .* UA 0.900 \(target 0.970\)", drawn)


@pytest.mark.parametrize(("term", "plain"), [("dumb", False), ("xterm", True)])
def test_progress_is_printed_as_lines_without_a_terminal(monkeypatch, term, plain):
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_progress(Terminal(), STUDY, plain=plain), ProgressLines)


def test_a_reader_that_has_gone_stops_nothing():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    ProgressLines(Gone(), STUDY).say("round 1")
