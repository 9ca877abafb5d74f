"""Speed and memory of folding updates into the mean: `python -m benchmarks.coordinator.aggregation`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.coordinator.spooled_updates import SpooledUpdates
from benchmarks.support.contests import Contest, Here, Measured, play_in_turn, ratios, spread
from benchmarks.support.documents import (
    Document,
    Out,
    Show,
    Toy,
    deliver,
    machine_line,
    read_document,
    table,
    within,
)
from benchmarks.support.programs import measured_apart
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.signals import interruptible

BENCHMARK = "aggregation"
TASKS = "mnist,cifar10"
COUNTS = (10, 100, 1000)

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, BENCHMARK, example="python -m benchmarks.coordinator.aggregation --out results/benchmarks/aggregation.json"
)
def aggregation(
    tasks: Annotated[str, typer.Option(metavar="A,B", help="Whose models: mnist is the 2NN, cifar10 the CNN.")] = TASKS,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each contestant.")] = 7,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fold 10 to 1,000 updates, from memory and from the spool, beside one pass of numpy over the same values."""
    if show is not None:
        document = read_document(show, BENCHMARK)
    else:
        counts: Sequence[int] = COUNTS
        if toy:
            tasks, counts, turns = "benchmarks.support.synthetic_task:TASK", (2,), 1
        with interruptible():
            document = _measure(tasks.split(","), counts, turns)
    deliver(document, tables, out, as_json)


def _measure(tasks: Sequence[str], counts: Sequence[int], turns: int) -> Document:
    document: Document = begun(BENCHMARK, turns)
    document["measured"] = [_compare(task, count, turns) for task in tasks for count in counts]
    return document


def _compare(task: str, count: int, turns: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fedpatch-aggregation-") as folder:
        updates = SpooledUpdates(task, count, Path(folder))
        contests = [
            Contest("fold", "folded from memory", Here(lambda: updates.fold(count, spooled=False))),
            Contest("spool", "folded from the spool", Here(lambda: updates.fold(count, spooled=True))),
            Contest("pass", "one pass, into float64", Here(lambda: updates.one_pass(count, "float64"))),
            Contest("pass-32", "one pass, into float32", Here(lambda: updates.one_pass(count, "float32"))),
        ]
        measured = play_in_turn(contests, turns, say=log.info)
        figures = [_figures(one, measured[2], count) for one in measured]
        # Added memory in a separate process: the greatest resident size minus the size before.
        peaks = {
            kind: measured_apart("benchmarks.coordinator.spooled_updates", task, count, kind)
            for kind in ("fold", "pass")
        }
        return {
            "task": task,
            "updates": count,
            "model_bytes": updates.schema.nbytes,
            "contests": figures,
            "peak_more_bytes": peaks,
        }


def _figures(one: Measured, floor: Measured, count: int) -> dict[str, Any]:
    return {
        "name": one.contest.name,
        "what": one.contest.what,
        "wall_s": spread(one.wall_s) | {"all": one.wall_s},
        "updates_per_s": spread(count / wall_s for wall_s in one.wall_s),
        "ratio_to_one_pass": ratios(one.wall_s, floor.wall_s),
    }


def tables(document: Document) -> Iterator[str]:
    """Yield a row for each number of updates and each way."""
    yield machine_line(document)
    yield ""
    headings = ("model", "updates", "how", "updates per second", "to one pass into float64", "memory added at most")
    yield from table(headings, (row for one in document["measured"] for row in _rows(one)))


def _rows(one: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for contest in one["contests"]:
        measured_as = {"fold": "", "spool": "fold"}.get(contest["name"], contest["name"])
        peak = one["peak_more_bytes"].get(measured_as)
        yield (
            f"{one['task']}, {size(one['model_bytes'])}",
            f"{one['updates']:,}",
            contest["what"],
            f"{contest['updates_per_s']['median']:,.0f}",
            within(contest["ratio_to_one_pass"]),
            "-" if peak is None else f"{size(peak)}, {peak / one['model_bytes']:.1f} models",
        )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.coordinator.aggregation")
