"""The command `fedpatch simulate fleet`: the round policy on a simulated fleet with random traits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fedpatch.shared.app.command import AsJson
from fedpatch.shared.app.formatting import accuracy, counted, duration, size
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.config.load import cli_options
from fedpatch.simulator.experiment.progress import status
from fedpatch.simulator.fleet.settings import FleetTerms

if TYPE_CHECKING:
    from rich.table import Table

    from fedpatch.simulator.fleet.report import FleetReport, FleetRound
    from fedpatch.simulator.fleet.sweep import SweepRow


Compare = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=A,B,..",
        help="Values of a setting to compare (repeatable: all combinations).",
    ),
]


_BEGINNING = "the fleet comes online"


@cli_options(FleetTerms)
def fleet(settings: FleetTerms, compare: Compare = None, as_json: AsJson = False) -> None:
    """Try a round policy on thousands of simulated devices that are slow, decline and drop out.

    Coordinator's engine and agent's job are the real ones; with --train TASK the devices learn. It prints a row per
    round and the wasted trainings, with --compare a row per combination.
    """
    with interruptible():
        if compare:
            _compare(settings, compare, as_json)
        else:
            _play(settings, as_json)


def _play(terms: FleetTerms, as_json: bool) -> None:
    from fedpatch.coordinator.cli.tables import print_json, print_table
    from fedpatch.simulator.fleet.simulation import simulate_fleet

    with status(_BEGINNING) as say:
        report = simulate_fleet(terms, lambda one: say(f"round {one.round} of {terms.rounds}"))
    if as_json:
        print_json(report.to_dict())
        return
    print_table(rounds_table(report.rounds))
    for line in summary(report):
        typer.echo(line)


def _compare(terms: FleetTerms, wanted: Sequence[str], as_json: bool) -> None:
    from fedpatch.coordinator.cli.tables import print_json, print_table
    from fedpatch.shared.config.load import public_values
    from fedpatch.simulator.fleet.sweep import combine, compare_policies, parse_axis

    axes = [parse_axis(text) for text in wanted]
    many, done = len(combine(terms, axes)), iter(range(1, sys.maxsize))
    with status(_BEGINNING) as say:
        rows = compare_policies(terms, axes, lambda _: say(f"{next(done)} of {many} policies"))
    if as_json:
        print_json({"terms": public_values(terms), "policies": [row.to_dict() for row in rows]})
        return
    print_table(policies_table(rows))


def rounds_table(rounds: Sequence[FleetRound]) -> Table:
    """Return a table with a row for each round."""
    headings = ["round", "outcome", "time", "asked", "accepted", "reported", "late", "lost", "down", "up", "why not"]
    learns = any(one.learned is not None for one in rounds)
    table = _table(*headings, *(["at", "UA", "p10", "slowest fifth"] if learns else []))
    for one in rounds:
        missing = (("declined", one.declined), ("failed", one.failures), ("refused", one.refused))
        table.add_row(
            str(one.round),
            f"failed ({one.failure})" if one.failure else one.outcome,
            duration(one.seconds),
            *(str(count) for count in (one.invited, one.accepted, one.reported, one.late, one.lost)),
            size(one.bytes_down),
            size(one.bytes_up),
            "; ".join(f"{word}: {counted(reasons)}" for word, reasons in missing if reasons),
            *(_learned(one) if learns else ()),
        )
    return table


def _learned(one: FleetRound) -> tuple[str, ...]:
    """Return the user accuracy of a round's model, and the slowest fifth's share of its weights."""
    found = one.learned
    if found is None:
        return ("", "", "", "")
    share = f"{found.weights[-1]:.1%}" if found.weights else "-"
    return (duration(found.at_s), accuracy(found.user_accuracy), accuracy(found.p10), share)


def policies_table(rows: Sequence[SweepRow]) -> Table:
    """Return a table with a row for each policy: its changed terms, failed rounds, times and wasted trainings."""
    names = list(rows[0].changes) if rows else []
    table = _table(*names, "rounds", "failed", "median", "p95", "updates", "wasted", "up", "total time")
    for row in rows:
        report, totals = row.report, row.report.totals()
        table.add_row(
            *(str(value) for value in row.changes.values()),
            str(totals["rounds"]),
            str(totals["failed"]),
            *(_seconds(totals[name]) for name in ("median_round_s", "p95_round_s")),
            str(totals["used"]),
            _share(report.wasted_share),
            size(totals["bytes_up"]),
            duration(report.virtual_s),
        )
    return table


def summary(report: FleetReport) -> list[str]:
    """Return the result of the study as a few lines."""
    rounds = "1 round" if len(report.rounds) == 1 else f"{len(report.rounds)} rounds"
    lines = [
        f"{rounds}, {report.failed} failed; median {_seconds(report.round_s(0.5))}, p95 {_seconds(report.round_s(0.95))}",
        f"trainings in vain: {_share(report.wasted_share)}",
        f"{duration(report.virtual_s)} simulated in {duration(report.real_s)}, {report.events:,} events",
    ]
    return [*lines, f"{report.stopped_because}: {report.detail}"] if report.detail else lines


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        words = heading in ("outcome", "why not")
        table.add_column(heading, justify="left" if words else "right", overflow="fold" if words else "ellipsis")
    return table
