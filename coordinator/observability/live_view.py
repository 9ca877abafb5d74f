"""The progress of a run on stderr: a live display in a terminal, one line per round in a pipe or a file.

A frame of the live display has the phase of the round, the devices and the curve of user accuracy. It fits 80 columns and the
height of the terminal (at least 24 lines) for any number of devices: a large fleet is shown by its slowest devices.
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
from fedpatch.coordinator.observability.status_message import StatusMessage, View, reason_counts, slowest
from fedpatch.coordinator.rounds.learning_alone import measure_words
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.app.formatting import accuracy, counted, duration
from fedpatch.shared.app.terminal import Display, PlainLines, can_draw, plain_console
from fedpatch.shared.wire.run_status import DeviceStatus, RunStatus

MIN_LINES = 24
MAX_DEVICES = 8
MAX_ROUNDS = 5
SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 30
_BAR_COLUMNS = 30

_STYLES: dict[str, str] = {
    State.REPORTED: "green",
    State.TRAINING: "cyan",
    State.UPLOADING: "blue",
    State.DECLINED: "yellow",
    State.FAILED: "red",
    State.LOST: "red",
    State.LATE: "yellow",
}


def draw(message: StatusMessage, *, over: bool = False, lines: int = MIN_LINES) -> RenderableType:
    """Draw one frame.

    Args:
        over: The run has ended: the frame keeps user accuracy and the last rounds, and leaves out devices and phase.
        lines: Height of the terminal.

    Returns:
        The frame, for a console of rich.
    """
    status = message.status
    parts: list[RenderableType] = [_headline(message, over)]
    if not over and is_short_of_devices(status):
        parts.append(_bar("devices there", status.present, status.wanted, _starting_text(status)))
        if status.unwilling:
            unwilling = counted(reason_counts(status.unwilling))
            parts.append(Text(f"unwilling: {unwilling}", style="yellow", overflow="fold"))
        if status.missing:
            parts.append(Text(f"missing: {status.missing}", style="yellow", overflow="fold"))
        if status.waits_s:
            parts.append(Text(f"the run waits for {duration(status.waits_s)} more", style="yellow"))
    if not over and status.silent_stores:
        parts.append(Text(f"the coordinator waits: {status.silent_stores}", style="yellow", overflow="fold"))
    if not over and status.devices:
        parts += [_quorum(status), _states(status), _devices(status, MAX_DEVICES + max(0, lines - MIN_LINES))]
    if message.records or (status.devices and not over):
        parts += ["", *([_user_accuracy(message)] if message.records else []), _rounds(message, over=over)]
    return Group(*parts)


def is_short_of_devices(status: RunStatus) -> bool:
    """Return whether the run waits because too few devices are present."""
    return status.phase == "waiting" and status.present < status.wanted


def _starting_text(status: RunStatus) -> str:
    return f"{status.starting} starting" if status.starting else ""


def sparkline(values: list[float]) -> str:
    """Draw one character for each value; the smallest value gets the lowest mark, the largest the highest."""
    if not values:
        return ""
    least, span = min(values), max(values) - min(values)
    top = len(SPARKS) - 1
    return "".join(SPARKS[round((value - least) / span * top) if span else top] for value in values)


def _headline(message: StatusMessage, over: bool) -> Text:
    status = message.status
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(message.run, style="bold")
    if message.round:
        text.append(f"  round {message.round}/{status.rounds_in_all}")
    if not over:
        text.append("  waiting for devices" if is_short_of_devices(status) else f"  {status.phase}", style="cyan")
        if status.pause_s:
            text.append(f"  next round in {duration(status.pause_s)}")
        if status.devices:
            text.append(f"  {duration(status.elapsed_s)}")
    return text


def _quorum(status: RunStatus) -> RenderableType:
    text = f"{status.needed} needed"
    if status.reported >= status.needed:
        text += ", quorum met"
    elif status.eta_s is not None:
        text += f", in about {duration(status.eta_s)}"
    return _bar("reported", status.reported, status.cohort, text)


def _bar(label: str, done: int, total: int, text: str) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(label, ProgressBar(total=max(total, 1), completed=done, width=_BAR_COLUMNS), f"{done}/{total}", text)
    return line


def _states(status: RunStatus) -> Text:
    """The number of devices in each state, with the reasons of those that are out."""
    text = Text(overflow="fold")
    counts = Counter((device.state, device.reason) for device in status.devices)
    counts.update({(other.state, other.reason): other.count for other in status.others})
    for state in State:
        in_state = {reason: count for (other, reason), count in counts.items() if other == state}
        if not in_state:
            continue
        reasons = {reason: count for reason, count in in_state.items() if reason}
        text.append(f"{state} {sum(in_state.values())}", style=_STYLES.get(state, ""))
        text.append(f" ({counted(reasons)})  " if reasons else "  ")
    text.rstrip()
    return text


def _devices(status: RunStatus, most: int) -> RenderableType:
    shown = list(status.devices)
    if status.cohort > most:
        shown = slowest((device for device in shown if device.state != State.REPORTED), most)
    table = Table.grid(padding=(0, 1))
    for device in shown:
        state = Text(device.state, style=_STYLES.get(device.state, ""))
        table.add_row(f"  {device.device}", state, _progress(device))
    left = status.cohort - len(shown)
    return Group(table, f"  and {left} more") if left and shown else table


def _progress(device: DeviceStatus) -> RenderableType:
    """Progress of the training, or the reason why the device is out."""
    if device.state != State.TRAINING:
        return Text(device.reason, no_wrap=True, overflow="ellipsis")
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=device.progress, width=_BAR_COLUMNS), f"{device.progress:.0%}")
    return line


def _user_accuracy(message: StatusMessage) -> Text:
    status = message.status
    counting = [one.user_accuracy for one in status.rounds if one.outcome == "aggregated"]
    curve = [*status.earlier, *(value for value in counting if value is not None)]
    latest = status.user_accuracy if status.user_accuracy is not None else (curve[-1] if curve else None)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{measure_words(message.records)} ")
    text.append(accuracy(latest), style="bold")
    if status.target_ua is not None:
        text.append(f" of {accuracy(status.target_ua)}")
    if status.user_accuracy is not None:
        text.append(" so far in this round")
    text.append(f"  {sparkline(curve[-_SPARK_COLUMNS:])}", style="green")
    return text


def _rounds(message: StatusMessage, *, over: bool) -> Table:
    """The last rounds; the open round is the last row."""
    is_open = bool(message.status.devices) and not over
    table = rounds_table(message.records)
    for record in message.records[-(MAX_ROUNDS - is_open) :]:
        add_round(table, record)
    if is_open:
        add_open_round(table, message)
    return table


DRAWS_PER_SECOND = 8


class RunView(View, Display, Protocol):
    """A view that is opened and closed: a context manager."""


def make_view(stderr: TextIO, *, plain: bool = False) -> RunView:
    """Make a live view if `stderr` is a terminal that supports it and `plain` is false, else a view of plain lines."""
    console = plain_console(stderr)
    return LiveView(console) if can_draw(console) and not plain else PlainView(stderr)


class LiveView:
    """Draws the newest status eight times a second, in a thread of rich, and prints lines above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._latest: StatusMessage | None = None
        self._over = False
        # stdout stays as it is: results are printed there and may go into a file.
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
        with suppress(OSError):  # the terminal may be gone, and the result must still be printed
            self._live.stop()

    def show(self, message: StatusMessage) -> None:
        """Keep the status for the next frame."""
        self._latest = message

    def say(self, line: str) -> None:
        """Print a line above the display."""
        with suppress(OSError):  # a closed stderr must not stop the training
            self._console.print(line, markup=False, soft_wrap=True)


_COUNT_EVERY_S = 10.0
"""Least time between two lines about a wait in which only the number of devices differs."""


class PlainView(PlainLines):
    """One line per round, and one when the run begins to wait for devices, the reason changes or devices have come."""

    def __init__(self, stderr: TextIO) -> None:
        super().__init__(stderr)
        self._last_round: int | None = None  # the last round that needs no line
        self._waiting = self._silent = False
        self._causes = (False, "", "")
        # The devices that the last line about a wait counted, and the time that was left.
        self._counted, self._left_s = 0, 0.0

    def show(self, message: StatusMessage) -> None:
        """Print what is new since the last call."""
        status = message.status
        last = message.records[-1].round if message.records else 0
        if self._last_round is None:
            self._last_round = last  # the rounds before a resume are not printed again
        for record in message.records if last > self._last_round else ():
            if record.round > self._last_round:
                self.say(round_line(record, status.rounds_in_all))
        self._last_round = max(last, self._last_round)
        if bool(status.silent_stores) != self._silent:
            self.say(
                f"the coordinator waits: {status.silent_stores}" if status.silent_stores else "the stores answer again"
            )
        self._silent = bool(status.silent_stores)
        self._show_wait(status)

    def _show_wait(self, status: RunStatus) -> None:
        waiting = is_short_of_devices(status)
        starting = _starting_text(status)
        unwilling = f"unwilling: {counted(reason_counts(status.unwilling))}" if status.unwilling else ""
        missing = f"missing: {status.missing}" if status.missing else ""
        details = "".join(f"; {text}" for text in (starting, unwilling, missing) if text)
        # In a large fleet no line is printed for each device that starts, comes or goes.
        causes = bool(starting), unwilling, "" if status.missing.endswith(" more") else missing
        left_s = status.waits_s or 0.0
        came = status.present != self._counted and 0 < left_s <= self._left_s - _COUNT_EVERY_S
        if waiting and (not self._waiting or causes != self._causes or came):
            left = f"; {duration(left_s)} left" if left_s else ""
            self.say(f"waiting for devices: {status.present} of {status.wanted} are there{details}{left}")
            self._counted, self._left_s = status.present, left_s
        self._waiting, self._causes = waiting, causes
