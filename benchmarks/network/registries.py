"""Cost of a round with the registry in PostgreSQL: `python -m benchmarks.network.registries`.

Two real coordinators, one with a SQLite file and one with a PostgreSQL server on this machine (a Unix socket, the same disk),
run rounds without training in turn, in one run. Linux only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from benchmarks.network.coordination import MOST_ROUNDS, ROUND_UPDATES
from benchmarks.network.fleets import compare_settings
from benchmarks.support.contests import ratios, spread
from benchmarks.support.documents import (
    DeviceCounts,
    Document,
    Out,
    Show,
    Toy,
    deliver,
    machine_line,
    parse_counts,
    read_document,
    table,
    within,
)
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible

BENCHMARK = "registries"
AIM = 1.3
"""Greatest wall ratio that is aimed at, from 50 devices on."""

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, BENCHMARK, example="python -m benchmarks.network.registries --out results/benchmarks/registries.json")
def registries(
    task: Annotated[str, typer.Option(metavar="TASK", help="Whose model travels.")] = "mnist",
    devices: DeviceCounts = "10,50,200",
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each contestant.")] = 5,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time rounds without training with the registry in PostgreSQL and in SQLite."""
    if show is not None:
        document = read_document(show, BENCHMARK)
    else:
        if toy:
            task, devices, turns = "benchmarks.support.synthetic_task:TASK", "2", 1
        counts = parse_counts(devices)
        with interruptible():
            document = begun(BENCHMARK, turns)
            document["measured"] = [_compare(task, count, turns) for count in counts]
    deliver(document, tables, out, as_json)


def _compare(task: str, devices: int, turns: int) -> dict[str, Any]:
    from tests.support.postgresql import postgres_server

    rounds = min(MOST_ROUNDS, max(1, ROUND_UPDATES // devices))
    with postgres_server() as server:
        variants: dict[str, dict[str, str | int]] = {"sqlite": {}, "postgresql": {"state": server.url()}}
        sqlite, postgresql = compare_settings(task, devices, rounds, turns, variants, log.info)
    return {
        "task": task,
        "devices": devices,
        "rounds_in_a_turn": rounds,
        "contests": [
            {"name": one.contest.name, "wall_s": spread(one.wall_s), "cpu_s": spread(one.cpu_s)}
            for one in (sqlite, postgresql)
        ],
        "wall_ratio": ratios(postgresql.wall_s, sqlite.wall_s),
        "cpu_ratio": ratios(postgresql.cpu_s, sqlite.cpu_s),
    }


def tables(document: Document) -> Iterable[str]:
    """Return the lines of the table, in Markdown."""
    yield machine_line(document)
    yield ""
    headings = ("devices", "SQLite: s a round", "PostgreSQL: s a round", "wall ratio", "coordinator's CPU ratio")
    rows = []
    for one in document["measured"]:
        sqlite, postgresql = (contest["wall_s"] for contest in one["contests"])
        figures = (within(sqlite, 3), within(postgresql, 3), within(one["wall_ratio"]), within(one["cpu_ratio"]))
        rows.append((one["devices"], *figures))
    yield from table(headings, rows)
    yield ""
    yield f"Aim: a wall ratio of at most {AIM} from 50 devices on. Medians (least to greatest) of {document['turns']} turns."


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.registries")
