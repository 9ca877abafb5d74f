"""Output of the commands that only read: tables for people, JSON for programs, both on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpatch.coordinator.observability.round_text import add_round, evaluation_words, rounds_table, troubles
from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.rounds.learning_alone import headline, last_comparison, loss_warning, measure_words
from fedpatch.coordinator.rounds.round_record import RoundRecord, pulled_most, training_rounds
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary, end_words, status_words, summary_of
from fedpatch.shared.app.formatting import accuracy, age

_UNBOUNDED_COLUMNS = 10_000
_SKEW_S = 60.0  # between the clocks of two coordinators
_SHOWN_PULLED = 5


def print_json(value: object) -> None:
    """Print a JSON document on one line."""
    typer.echo(json.dumps(value, allow_nan=False))


def _rounds_words(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def print_summary(summary: RunSummary) -> None:
    """Print how a run ended, and how many devices gained from it."""
    count = training_rounds(summary.rounds)
    rounds = _rounds_words(count)
    rounds += ", none of which succeeded" if count and summary.in_vain else ""
    typer.echo(
        f"run {summary.run}: {end_words(summary.stopped_because)} after {rounds}, "
        f"{measure_words(summary.rounds)} {accuracy(summary.user_accuracy)}"
    )
    if (last := last_comparison(summary.rounds)) is not None:
        typer.echo(f"gain over learning alone (round {last.round}): {headline(last.independent, last.label)}")
    if warning := loss_warning(summary.rounds, summary.private):
        typer.echo(f"warning: {warning}")
    if summary.model:
        typer.echo(f"model: {summary.model}")


def print_run(info: RunInfo, rounds: Sequence[RoundRecord]) -> None:
    """Print a run: settings, rounds and end."""
    table = rounds_table(rounds)
    for record in rounds:
        add_round(table, record)
    typer.echo(f"task {info.task}, strategy {info.strategy}, private {info.private}, begun {_moment(info.created_at)}")
    if info.settings.get("norm_bound", "off") != "off":
        typer.echo(f"norm bound {info.settings['norm_bound']}")
    if info.settings.get("aggregate", "mean") != "mean":
        typer.echo(f"rule of aggregation {info.settings['aggregate']}")
    if rounds:
        print_table(table)
    for record in rounds:
        if words := [*filter(None, [evaluation_words(record)]), *troubles(record)]:
            typer.echo(f"round {record.round}: {'; '.join(words)}")
    if farthest := pulled_most(rounds)[:_SHOWN_PULLED]:
        words = [f"{device} ({pull:.0%} of its change, {_rounds_words(count)})" for device, pull, count in farthest]
        typer.echo(f"updates that bounds and rule pulled most: {', '.join(words)}")
    print_summary(summary_of(info, rounds))


def print_evaluation(record: RoundRecord, *, as_json: bool) -> None:
    """Print the record of an evaluate round."""
    if as_json:
        print_json(record.to_dict())
        return
    words = [evaluation_words(record) or f"no device measured: {record.outcome_words}", *troubles(record)]
    typer.echo(f"round {record.round}: {'; '.join(words)}")


def print_runs(runs: Iterable[RunInfo], *, as_json: bool) -> None:
    """Print all runs, the newest first."""
    if as_json:
        print_json([asdict(one) for one in runs])
        return
    table = _table("run", "begun", "task", "strategy", "private", "status", "UA")
    for one in runs:
        ua = accuracy(one.user_accuracy)
        table.add_row(one.id, _moment(one.created_at), one.task, one.strategy, one.private, status_words(one), ua)
    print_table(table)


def print_devices(devices: Iterable[DeviceInfo], now: float, *, as_json: bool) -> None:
    """Print all devices that were ever seen with their last state; `now` is unix time in seconds."""
    if as_json:
        print_json([asdict(one) for one in devices])
        return
    counters = ("invited", "accepted", "declined", "reported", "lost", "failed", "refused", "late")
    table = _table("device", "fleet", "state", "last seen", "tasks", *counters, "last reason")
    for column in table.columns[5:-1]:
        column.justify = "right"
    for one in devices:
        counts = [str(getattr(one, counter)) for counter in counters]
        state = Text("online", style="green") if one.online else Text("offline", style="red")
        if one.revoked:
            state = Text("revoked", style="red")
        elif hold := one.quarantined or one.drained:
            word = "quarantined" if one.quarantined else "drained"
            state = Text(f"{word} {age(max(0.0, now - hold.since))}: {hold.reason}", style="yellow")
        # A later time is of a clock that was ahead.
        last_seen = age(max(0.0, now - one.last_seen)) if one.last_seen < now + _SKEW_S else _moment(one.last_seen)
        table.add_row(one.id, one.fleet, state, last_seen, ", ".join(one.tasks), *counts, one.last_reason)
    print_table(table)


def print_named(rows: Sequence[Mapping[str, str]], *, as_json: bool) -> None:
    """Print names with descriptions; a `problem` replaces the description."""
    if as_json:
        print_json(rows)
        return
    table = _table("name", "description")
    for row in rows:
        problem = row.get("problem")
        table.add_row(row["name"], Text(f"cannot be used: {problem}", style="red") if problem else row["description"])
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table, fitted to a terminal; in a pipe or a file one row is one line."""
    console = Console(
        highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNBOUNDED_COLUMNS
    )
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
