"""Progress of a simulation on stderr: a bar in a terminal, otherwise a line at intervals."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedpatch.shared.app.formatting import accuracy, duration
from fedpatch.shared.app.terminal import Display, PlainLines, can_draw, plain_console
from fedpatch.simulator.spec.study import Point, Study

LINE_EVERY_S = 10.0
RECENT_ROUNDS = 10


class StudyProgress(Display, Protocol):
    """A display of a study's progress."""

    def show(self, point: Point) -> None:
        """Show the next point of the curve."""


def make_progress(stderr: TextIO, study: Study, *, plain: bool = False) -> StudyProgress:
    """Return a bar if `stderr` is a terminal that can draw it and not `plain`; else lines."""
    console = plain_console(stderr)
    return Bar(console, study) if can_draw(console) and not plain else ProgressLines(stderr, study)


@contextmanager
def status(beginning: str, otherwise: Callable[[str], None] = lambda _: None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress: on stderr if that is a terminal, else `otherwise`."""
    console = plain_console(sys.stderr)
    if not console.is_terminal:
        yield otherwise
        return
    with console.status(beginning) as shown:
        yield shown.update


class CurveProgress:
    """Progress and speed of a study, in words."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._recent: deque[float] = deque(maxlen=RECENT_ROUNDS)

    def add(self, point: Point) -> str:
        """Add the next point; return user accuracy, time per round and the longest remaining time."""
        words = f"{self._study.label} {accuracy(point.user_accuracy)}"
        if self._study.target_ua is not None:
            words += f" (target {accuracy(self._study.target_ua)})"
        if point.round == 0:  # its time is that of reading the data, not of a round
            return words
        self._recent.append(point.seconds)
        pace_s = sum(self._recent) / len(self._recent)
        left_s = pace_s * (self._study.rounds - point.round)
        at_most = "" if self._study.target_ua is None else "at most "
        return f"{words}, {_pace(pace_s)}, {at_most}{duration(left_s)} left"


def _pace(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms a round" if seconds < 0.995 else f"{duration(seconds)} a round"


class Bar:
    """Draws the newest point at intervals, in a thread of rich."""

    def __init__(self, console: Console, study: Study) -> None:
        self._course = CurveProgress(study)
        # stdout is not redirected: it has the results, and may go into a file.
        self._progress = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}", markup=False),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            redirect_stdout=False,
        )
        self._bar = self._progress.add_task("getting ready", total=study.rounds)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a closed stderr does not stop the simulation
            self._progress.stop()

    def show(self, point: Point) -> None:
        """Store the point; the next drawing shows it."""
        self._progress.update(self._bar, completed=point.round, description=self._course.add(point))

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        with suppress(OSError):
            self._progress.console.print(line, markup=False, soft_wrap=True)


class ProgressLines(PlainLines):
    """One line every ten seconds at most; `clock` counts seconds."""

    def __init__(self, stderr: TextIO, study: Study, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stderr)
        self._rounds = study.rounds
        self._course = CurveProgress(study)
        self._clock = clock
        self._said_at = clock()

    def show(self, point: Point) -> None:
        """Print the point if the last line is ten seconds old."""
        words = self._course.add(point)
        now = self._clock()
        if now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            self.say(f"round {point.round}/{self._rounds}: {words}")
