"""Cost of a round without training: `python -m benchmarks.network.coordination`.

Our coordinator, a bare exchange of the same bytes, and Flower's deployment engine take turns. Linux only.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.network.coordination_tables import draw, tables
from benchmarks.network.fleets import BareFleet, FedpatchFleet, FlowerFleet, FlowerSimulation, model_shapes
from benchmarks.support.contests import Contest, Measured, play_in_turn, ratios, spread
from benchmarks.support.documents import DeviceCounts, Document, Out, Show, Toy, deliver, parse_counts, read_document
from benchmarks.support.report import begun
from benchmarks.training.peer_rounds import HOW_TO_GET, PEERS_PYTHON, version
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible

BENCHMARK = "coordination"
ENCODINGS = ("fp32", "delta-int8")
"""The first of these sends the same bytes as the bare exchange."""

SIZES = "10,50,200,1000"
TASKS = "mnist,cifar10"
MOST_MEGABYTES = 2000.0
"""The bare exchange has all updates of a round in the broker at once: with more bytes than this it is left out."""
MOST_FOR_FLOWER = 10
ROUND_UPDATES = 100
MOST_ROUNDS = 10
"""A turn has as many rounds as are needed for so many updates, up to this maximum."""

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, BENCHMARK, example="python -m benchmarks.network.coordination --out results/benchmarks/coordination.json")
def coordination(  # noqa: PLR0913 - one keyword per choice of the user
    tasks: Annotated[
        str, typer.Option(metavar="A,B", help="Whose models travel: mnist is the 2NN, cifar10 the CNN.")
    ] = TASKS,
    devices: DeviceCounts = SIZES,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each contestant.")] = 5,
    toy: Toy = False,
    peers_python: Annotated[
        Path, typer.Option(metavar="PATH", help="Python of the environment that holds Flower.")
    ] = PEERS_PYTHON,
    show: Show = None,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw coordination.svg there.")] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Time rounds without training: fedpatch's coordinator, a bare exchange over mosquitto, Flower's deployment engine."""
    if show is not None:
        document = read_document(show, BENCHMARK)
    else:
        if toy:
            tasks, devices, turns = "benchmarks.support.synthetic_task:TASK", "2", 1
            peers_python = PEERS_PYTHON.with_name("none")  # with Flower it would take minutes
        with interruptible():
            document = _measure(tasks.split(","), parse_counts(devices), turns, peers_python)
    if plots is not None:
        draw(document, plots)
    deliver(document, tables, out, as_json)


def _measure(tasks: Sequence[str], sizes: Sequence[int], turns: int, peers_python: Path) -> Document:
    document: Document = begun(BENCHMARK, turns)
    document["flower"] = version("flwr", peers_python)
    document["measured"] = [
        _compare(task, devices, turns, peers_python if document["flower"] else None)
        for task in tasks
        for devices in sizes
    ]
    return document


def _compare(task: str, devices: int, turns: int, peers_python: Path | None) -> dict[str, Any]:
    model_bytes = 4 * sum(math.prod(shape) for shape in model_shapes(task).values())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-coordination-")))
        contests: list[Contest] = []
        for contest in _contests(task, devices, model_bytes, folder, peers_python):
            log.info("%s, %d devices: made ready: %s", task, devices, contest.what)
            stack.callback(contest.contestant.close)
            contests.append(contest)
        measured = play_in_turn(contests, turns, say=log.info)
        return {
            "task": task,
            "devices": devices,
            "model_bytes": model_bytes,
            "contests": [_figures(one, measured) for one in measured],
        }


def _contests(task: str, devices: int, model_bytes: int, folder: Path, peers_python: Path | None) -> Iterator[Contest]:
    rounds = min(MOST_ROUNDS, max(1, ROUND_UPDATES // devices))
    usual = next(str(one.default) for one in fields(RunSettings) if one.name == "encoding")
    for encoding in ENCODINGS:
        what = f"fedpatch, {encoding}" + (" (its default)" if encoding == usual else "")
        fleet = FedpatchFleet(task, devices, encoding, rounds, folder / encoding)
        yield Contest(f"fedpatch-{encoding}", what, fleet, share=rounds)
    if devices * model_bytes <= MOST_MEGABYTES * 1e6:
        yield Contest("bare", "bare exchange", BareFleet(task, devices, rounds, folder / "bare"), share=rounds)
        durable = BareFleet(task, devices, rounds, folder / "bare-durable", durable=True)
        yield Contest("bare-durable", "bare exchange, hashed and on disk", durable, share=rounds)
    if peers_python is not None and devices <= MOST_FOR_FLOWER:
        yield Contest("flower", "Flower's deployment", FlowerFleet(task, devices, peers_python))
        yield Contest("flower-simulation", "Flower's simulation", FlowerSimulation(task, devices, peers_python))
    elif devices <= MOST_FOR_FLOWER:
        log.info("Flower's deployment: not measured: %s", HOW_TO_GET)


def _figures(one: Measured, measured: Sequence[Measured]) -> dict[str, Any]:
    ours = measured[0]
    figures: dict[str, Any] = {
        "name": one.contest.name,
        "what": one.contest.what,
        "rounds_in_a_turn": one.contest.share,
    }
    figures["wall_s"] = spread(one.wall_s) | {"all": one.wall_s}
    figures["cpu_s"] = spread(one.cpu_s) | {"all": one.cpu_s}
    figures["wall_ratio_to_fedpatch"] = ratios(one.wall_s, ours.wall_s)
    for other in measured:
        if other.contest.name.startswith("bare"):
            to = other.contest.name.replace("-", "_")
            figures[f"wall_ratio_to_{to}"] = ratios(one.wall_s, other.wall_s)
            figures[f"cpu_ratio_to_{to}"] = ratios(one.cpu_s, other.cpu_s)
    fleet = one.contest.contestant
    if isinstance(fleet, FedpatchFleet):
        figures |= {name: fleet.answers[-1][name] for name in ("bytes_down", "bytes_up")}
    return figures


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.coordination")
