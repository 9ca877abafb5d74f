"""Shows a run on stderr while it goes on: a live display in a terminal, one plain line per round anywhere else."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live

from coordinator.frame import draw
from coordinator.round_text import round_line
from coordinator.snapshot import Snapshot, View, starting_words
from coordinator.terminal import Display, PlainLines, can_draw, plain_console
from shared.quantities import counted

DRAWS_PER_SECOND = 8


class RunView(View, Display, Protocol):
    """A view that has a beginning and an end."""


def make_view(stderr: TextIO, *, plain: bool = False) -> RunView:
    """A live view where `stderr` is a terminal that can be drawn on, unless `plain` lines are wanted."""
    console = plain_console(stderr)
    return LiveView(console) if can_draw(console) and not plain else PlainView(stderr)


class LiveView:
    """Draws the newest snapshot at its own pace, in a thread of rich's, and says lines above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._latest: Snapshot | None = None
        self._over = False
        # stdout stays as it is: what is printed there is a result and may go into a file.
        self._live = Live(
            console=console,
            get_renderable=lambda: draw(self._latest, over=self._over, lines=console.height) if self._latest else "",
            refresh_per_second=DRAWS_PER_SECOND,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Only takes note; the next drawing shows it."""
        self._latest = snapshot

    def say(self, line: str) -> None:
        """Prints a line above the display."""
        with suppress(OSError):  # nobody reads any more, which is no reason to stop training
            self._console.print(line, markup=False, soft_wrap=True)


class PlainView(PlainLines):
    """One line when the coordinator begins to wait for devices or others are starting or unwilling, and one per round."""

    def __init__(self, stderr: TextIO) -> None:
        super().__init__(stderr)
        self._told: int | None = None  # number of the last round that needs no line
        self._waiting = False
        self._news = (False, "", "")

    def show(self, snapshot: Snapshot) -> None:
        """Says what is new since the last time."""
        last = snapshot.records[-1].round if snapshot.records else 0
        if self._told is None:
            self._told = last  # a resumed run begins with the rounds of before
        for record in snapshot.records if last > self._told else ():
            if record.round > self._told:
                self.say(round_line(record, snapshot.rounds))
        self._told = max(last, self._told)
        waiting = snapshot.phase == "waiting" and snapshot.present < snapshot.wanted
        starting = starting_words(snapshot)
        unwilling = f"unwilling: {counted(snapshot.unwilling)}" if snapshot.unwilling else ""
        missing = f"missing: {snapshot.missing}" if snapshot.missing else ""
        others = "".join(f"; {words}" for words in (starting, unwilling, missing) if words)
        # In a large fleet, not a line for each device that starts, comes or goes.
        news = bool(starting), unwilling, "" if snapshot.missing.endswith(" more") else missing
        if waiting and (not self._waiting or news != self._news):
            self.say(f"waiting for devices: {snapshot.present} of {snapshot.wanted} are there{others}")
        self._waiting, self._news = waiting, news
