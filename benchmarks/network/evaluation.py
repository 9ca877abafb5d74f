"""Processor time of the coordinator in an evaluate round beside a training round: `python -m benchmarks.network.evaluation`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.network.fleets import FedpatchFleet
from benchmarks.support.documents import Document, Out, Toy, deliver, machine_line, table
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "evaluation", example="python -m benchmarks.network.evaluation --out results/benchmarks/evaluation.json")
def evaluation(
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Light devices, all in each round.")] = 1000,
    task: Annotated[str, typer.Option(metavar="NAME", help="Task, for the size of its model.")] = "mnist",
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Pairs of rounds, one after the other.")] = 5,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Play training rounds and evaluate rounds in turn, without training on the devices, in one run with delta-int8."""
    if toy:
        devices, task, turns = 3, "digits", 1
    document = begun("network.evaluation", turns)
    with interruptible(), tempfile.TemporaryDirectory(prefix="fedpatch-evaluation-") as name:
        fleet = FedpatchFleet(task, devices, "delta-int8", 1, Path(name) / "fleet", evaluate_every=1)
        try:
            for _ in range(2 * turns + 1):  # the first pair, with the start of the run, is not measured
                fleet.play()
        finally:
            fleet.close()
    rounds = fleet.answers[2:]
    spent = {kind: [one["cpu_s"] for one in rounds if one["outcome"] == kind] for kind in ("aggregated", "evaluated")}
    document |= {"task": task, "devices": devices, "cpu_s": spent, "reported": [one["reported"] for one in rounds]}
    document["ratio"] = statistics.median(spent["evaluated"]) / statistics.median(spent["aggregated"])
    deliver(document, _lines, out, as_json)


def _lines(document: Document) -> Iterator[str]:
    yield machine_line(document)
    rows = [
        (kind, f"{statistics.median(found):.3f}", f"{min(found):.3f} to {max(found):.3f}")
        for kind, found in document["cpu_s"].items()
    ]
    yield from table((f"round of {document['devices']} devices", "coordinator: CPU s", "least to most"), rows)
    yield f"ratio of the medians: {document['ratio']:.3f}"


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.evaluation")
