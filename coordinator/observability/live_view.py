"""Shows a run on stderr while it goes on: a live display in a terminal, one plain line per round anywhere else.

One picture of a run for the live display: what the round is at, the devices, how user accuracy has come along.

It fits 80 columns and as many lines as there are, or 24, however many devices there are: beyond a few, only the slowest
are named, and then those that are out.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedpatch.coordinator.observability.round_text import add_open_round, add_round, round_line, rounds_table
from fedpatch.coordinator.observability.snapshot import DeviceLine, Snapshot, View, slowest, starting_words
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.run_records import measure_words
from fedpatch.shared.app.formatting import accuracy, counted, duration
from fedpatch.shared.app.terminal import Display, PlainLines, can_draw, plain_console

MIN_LINES = 24
MAX_DEVICES = 8
MAX_ROUNDS = 5
SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 30
_BAR_COLUMNS = 30

_STYLES = {
    State.REPORTED: "green",
    State.TRAINING: "cyan",
    State.UPLOADING: "blue",
    State.DECLINED: "yellow",
    State.FAILED: "red",
    State.LOST: "red",
    State.LATE: "yellow",
}


def draw(snapshot: Snapshot, *, over: bool = False, lines: int = MIN_LINES) -> RenderableType:
    """The picture, for a terminal of so many `lines`; when all is `over`, without what was only passing."""
    parts: list[RenderableType] = [_headline(snapshot, over)]
    if not over and snapshot.phase == "waiting" and snapshot.present < snapshot.wanted:
        parts.append(_bar("devices there", snapshot.present, snapshot.wanted, starting_words(snapshot)))
        if snapshot.unwilling:
            parts.append(Text(f"unwilling: {counted(snapshot.unwilling)}", style="yellow", overflow="fold"))
        if snapshot.missing:
            parts.append(Text(f"missing: {snapshot.missing}", style="yellow", overflow="fold"))
    if not over and snapshot.devices:
        parts += [_quorum(snapshot), _states(snapshot), _devices(snapshot, MAX_DEVICES + max(0, lines - MIN_LINES))]
    if snapshot.records or (snapshot.devices and not over):
        parts += ["", *([_user_accuracy(snapshot)] if snapshot.records else []), _rounds(snapshot, over=over)]
    return Group(*parts)


def sparkline(values: list[float]) -> str:
    """One character per value, the least lowest and the greatest highest."""
    if not values:
        return ""
    least, span = min(values), max(values) - min(values)
    top = len(SPARKS) - 1
    return "".join(SPARKS[round((value - least) / span * top) if span else top] for value in values)


def _headline(snapshot: Snapshot, over: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(snapshot.run, style="bold")
    if snapshot.round:
        text.append(f"  round {snapshot.round}/{snapshot.rounds}")
    if not over:
        waiting = snapshot.phase == "waiting" and snapshot.present < snapshot.wanted
        text.append("  waiting for devices" if waiting else f"  {snapshot.phase}", style="cyan")
        if snapshot.pause_s:
            text.append(f"  next round in {duration(snapshot.pause_s)}")
        if snapshot.devices:
            text.append(f"  {duration(snapshot.elapsed_s)}")
    return text


def _quorum(snapshot: Snapshot) -> RenderableType:
    words = f"{snapshot.needed} needed"
    if snapshot.reported >= snapshot.needed:
        words += ", quorum met"
    elif snapshot.eta_s is not None:
        words += f", in about {duration(snapshot.eta_s)}"
    return _bar("reported", snapshot.reported, snapshot.cohort, words)


def _bar(what: str, done: int, total: int, words: str) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(what, ProgressBar(total=max(total, 1), completed=done, width=_BAR_COLUMNS), f"{done}/{total}", words)
    return line


def _states(snapshot: Snapshot) -> Text:
    """How many devices are in each state, and the reasons of those that are out."""
    text = Text(overflow="fold")
    counts = Counter((one.state, one.reason) for one in snapshot.devices)
    counts.update({(one.state, one.reason): one.count for one in snapshot.others})
    for state in State:
        in_state = {reason: count for (one, reason), count in counts.items() if one is state}
        if not in_state:
            continue
        reasons = {reason: count for reason, count in in_state.items() if reason}
        why = f" ({counted(reasons)})" if reasons else ""
        text.append(f"{state} {sum(in_state.values())}", style=_STYLES.get(state, ""))
        text.append(f"{why}  ")
    text.rstrip()
    return text


def _devices(snapshot: Snapshot, most: int) -> RenderableType:
    shown = list(snapshot.devices)
    if snapshot.cohort > most:
        shown = slowest((one for one in shown if one.state is not State.REPORTED), most)
    table = Table.grid(padding=(0, 1))
    for one in shown:
        table.add_row(f"  {one.device}", Text(str(one.state), style=_STYLES.get(one.state, "")), _doing(one))
    left = snapshot.cohort - len(shown)
    return Group(table, f"  and {left} more") if left and shown else table


def _doing(one: DeviceLine) -> RenderableType:
    if one.state is not State.TRAINING:
        return Text(one.reason, no_wrap=True, overflow="ellipsis")
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=one.progress, width=_BAR_COLUMNS), f"{one.progress:.0%}")
    return line


def _user_accuracy(snapshot: Snapshot) -> Text:
    values = [record.user_accuracy for record in snapshot.records if record.user_accuracy is not None]
    latest = snapshot.user_accuracy if snapshot.user_accuracy is not None else (values[-1] if values else None)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{measure_words(snapshot.records)} ")
    text.append(accuracy(latest), style="bold")
    if snapshot.target_ua is not None:
        text.append(f" of {accuracy(snapshot.target_ua)}")
    if snapshot.user_accuracy is not None:
        text.append(" so far in this round")
    curve = [*snapshot.earlier, *values]
    text.append(f"  {sparkline(curve[-_SPARK_COLUMNS:])}", style="green")
    return text


def _rounds(snapshot: Snapshot, *, over: bool) -> Table:
    """The last rounds, the one that is open among them."""
    is_open = bool(snapshot.devices) and not over
    table = rounds_table(snapshot.records)
    for record in snapshot.records[-(MAX_ROUNDS - is_open) :]:
        add_round(table, record)
    if is_open:
        add_open_round(table, snapshot)
    return table


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
