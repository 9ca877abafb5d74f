"""One picture of a run for the live display: what the round is at, the devices, how user accuracy has come along.

It fits 80 columns and about 20 lines however many devices there are: beyond a few, only the slowest are named.
"""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.records import measure_words
from coordinator.round_states import State
from coordinator.round_text import add_round, rounds_table
from coordinator.snapshot import DeviceLine, Snapshot
from shared.quantities import accuracy, counted, duration

MAX_DEVICES = 8
MAX_ROUNDS = 5
SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 30
_BAR_COLUMNS = 30

# The slowest first: what a person waits for.
_UNDER_WAY = (State.LOST, State.INVITED, State.ACCEPTED, State.TRAINING, State.UPLOADING)
_STYLES = {
    State.REPORTED: "green",
    State.TRAINING: "cyan",
    State.UPLOADING: "blue",
    State.DECLINED: "yellow",
    State.FAILED: "red",
    State.LOST: "red",
    State.LATE: "yellow",
}


def draw(snapshot: Snapshot, *, over: bool = False) -> RenderableType:
    """The picture; when all is `over`, without what was only passing."""
    parts: list[RenderableType] = [_headline(snapshot, over)]
    if not over and snapshot.phase == "waiting" and snapshot.present < snapshot.wanted:
        parts.append(_bar("devices there", snapshot.present, snapshot.wanted, ""))
        if snapshot.unwilling:
            parts.append(Text(f"unwilling: {counted(snapshot.unwilling)}", style="yellow", overflow="fold"))
    if not over and snapshot.devices:
        parts += [_quorum(snapshot), _states(snapshot.devices), _devices(snapshot.devices)]
    if snapshot.records:
        parts += ["", _user_accuracy(snapshot), _rounds(snapshot)]
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
    return _bar("reported", snapshot.reported, len(snapshot.devices), words)


def _bar(what: str, done: int, total: int, words: str) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(what, ProgressBar(total=max(total, 1), completed=done, width=_BAR_COLUMNS), f"{done}/{total}", words)
    return line


def _states(devices: tuple[DeviceLine, ...]) -> Text:
    """How many devices are in each state, and the reasons of those that are out."""
    text = Text(overflow="fold")
    counts = Counter(one.state for one in devices)
    for state in State:
        if not counts[state]:
            continue
        reasons = Counter(one.reason for one in devices if one.state is state and one.reason)
        why = f" ({counted(reasons)})" if reasons else ""
        text.append(f"{state} {counts[state]}", style=_STYLES.get(state, ""))
        text.append(f"{why}  ")
    text.rstrip()
    return text


def _devices(devices: tuple[DeviceLine, ...]) -> RenderableType:
    shown = list(devices)
    if len(devices) > MAX_DEVICES:
        under_way = [one for one in devices if one.state in _UNDER_WAY]
        shown = sorted(under_way, key=lambda one: (_UNDER_WAY.index(one.state), one.progress))[:MAX_DEVICES]
    table = Table.grid(padding=(0, 1))
    for one in shown:
        table.add_row(f"  {one.device}", Text(str(one.state), style=_STYLES.get(one.state, "")), _doing(one))
    left = len(devices) - len(shown)
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
    text.append(f"  {sparkline(values[-_SPARK_COLUMNS:])}", style="green")
    return text


def _rounds(snapshot: Snapshot) -> Table:
    table = rounds_table(snapshot.records)
    for record in snapshot.records[-MAX_ROUNDS:]:
        add_round(table, record)
    return table
