"""Cost of the metrics for the coordinator of a large fleet: `python -m benchmarks.network.metrics_cost`."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from prometheus_client import generate_latest

from benchmarks.network.metered_fleet import MeteredFleet, seconds_of
from benchmarks.support.documents import Document, Out, Toy, deliver
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible
from fedpatch.simulator.fleet.settings import FleetTerms

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app, "metrics_cost", example="python -m benchmarks.network.metrics_cost --out results/benchmarks/metrics-cost.json"
)
def metrics_cost(
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Devices, all of them in each round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each turn.")] = 5,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns, each with and without metrics.")] = 7,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Play simulated rounds with and without metrics, in turn, and compare the coordinator's own processor time."""
    if toy:
        devices, rounds, turns = 5, 2, 1
    with interruptible(), tempfile.TemporaryDirectory(prefix="fedpatch-metrics-") as folder:
        document = measure(Path(folder), devices, rounds, turns)
    deliver(document, _lines, out, as_json)


def measure(folder: Path, devices: int, rounds: int, turns: int) -> dict[str, Any]:
    """Return medians over the turns. `ratio` is the time with metrics over that without, of engine and metrics alone."""
    terms = FleetTerms(devices=devices, rounds=rounds, participation=1.0, over_select=1.0)
    ratios, extra_s, events = [], [], 0
    for turn in range(turns + 1):
        bare = MeteredFleet(terms, None, folder)
        bare.run()
        metrics = Metrics()
        metered = MeteredFleet(terms, metrics, folder)
        metered.run()
        if turn == 0:
            continue  # warm-up
        ratios.append(metered.coordinator_s / bare.coordinator_s)
        extra_s.append((metered.coordinator_s - bare.coordinator_s) / rounds)
        events = metered.events
    text = generate_latest(metrics.registry)
    return {
        "devices": devices,
        "events_per_round": events // rounds,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "extra_ms_per_round": round(1e3 * statistics.median(extra_s), 2),
        "coordinator_ms_per_round": round(1e3 * bare.coordinator_s / rounds, 2),
        "look_ms": round(1e3 * seconds_of(lambda: _look(metered)), 3),
        "scrape_ms": round(1e3 * seconds_of(lambda: generate_latest(metrics.registry)), 2),
        "scrape_bytes": len(text),
        "series": sum(not line.startswith("#") for line in text.decode().splitlines()),
    }


def _lines(document: Document) -> list[str]:
    return [f"{name}: {value}" for name, value in document.items()]


def _look(fleet: MeteredFleet) -> None:
    fleet.agenda.now += 1.0
    fleet.look()


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.metrics_cost")
