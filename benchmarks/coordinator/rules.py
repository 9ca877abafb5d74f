"""Cost and memory of each rule of aggregation beside the mean: `python -m benchmarks.coordinator.rules`."""

from __future__ import annotations

import logging
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.support.contests import Contest, Here, Measured, play_in_turn, ratios, spread
from benchmarks.support.documents import Document, Out, Show, Toy, deliver, machine_line, read_document, table, within
from benchmarks.support.report import begun
from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.limit_syntax import Limits, parse_aggregate_rule, parse_norm_bound
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.messages import TrainPlan

BENCHMARK = "rules"
RULES = ("mean", "centred", "trimmed:0.2")
NORM_BOUND = "auto:2"
COUNTS = (10, 100, 1000)
VALUES = 50_000
_DIFFERENT = 100  # updates, which are repeated: more than a cache holds

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, BENCHMARK, example="python -m benchmarks.coordinator.rules --out results/benchmarks/rules.json")
def rules(
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each rule.")] = 5,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Aggregate 10 to 1,000 updates in memory by each rule, with the norm bound that is the default."""
    if show is not None:
        document = read_document(show, BENCHMARK)
    else:
        counts, values = ((2,), 200) if toy else (COUNTS, VALUES)
        with interruptible():
            document = _measure(counts, values, 1 if toy else turns)
    deliver(document, tables, out, as_json)


def _measure(counts: Sequence[int], values: int, turns: int) -> Document:
    document: Document = begun(BENCHMARK, turns) | {"values": values, "norm_bound": NORM_BOUND}
    document["measured"] = [_compare(count, Updates(values), turns) for count in counts]
    return document


class Updates:
    """Updates of a model with two tensors, in memory.

    Args:
        values: Values of the model, a multiple of 100.
    """

    def __init__(self, values: int) -> None:
        shapes = {"layer.bias": (100,), "layer.weight": (values // 100 - 1, 100)}
        self.schema = Schema(tuple(TensorSpec(name, shape, "float32", "weight") for name, shape in shapes.items()))
        rng = np.random.default_rng(0)
        self._base = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        self._updates = [
            {name: base + rng.standard_normal(base.shape, np.float32) / 100 for name, base in self._base.items()}
            for _ in range(_DIFFERENT)
        ]

    def aggregate(self, rule: str, count: int) -> None:
        """Aggregate `count` updates of 600 examples each by a rule; the table of `trimmed` is a file, as in a run."""
        with tempfile.TemporaryFile(prefix="fedpatch-rules-") as file:
            aggregate(
                RoundUpdates(
                    dict.fromkeys((f"device-{number:05d}" for number in range(count)), 600),
                    lambda device: self._updates[int(device.rpartition("-")[2]) % _DIFFERENT],
                ),
                RoundBase(self.schema, self._base, TrainPlan("sgd", 0.01, 20)),
                Limits(parse_norm_bound(NORM_BOUND), rule=parse_aggregate_rule(rule)),
                lambda shape: np.memmap(file, np.float32, "w+", shape=shape),
            )

    def peak_bytes(self, rule: str, count: int) -> int:
        """Return the peak memory of aggregation, without the updates and the file."""
        tracemalloc.start()
        try:
            self.aggregate(rule, count)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def _compare(count: int, updates: Updates, turns: int) -> dict[str, Any]:
    contests = [Contest(rule, rule, Here(partial(updates.aggregate, rule, count))) for rule in RULES]
    measured = play_in_turn(contests, turns, say=log.info)
    return {
        "updates": count,
        "model_bytes": updates.schema.nbytes,
        "rules": [_figures(one, measured[0], updates.peak_bytes(one.contest.name, count)) for one in measured],
    }


def _figures(one: Measured, mean: Measured, peak_bytes: int) -> dict[str, Any]:
    return {
        "rule": one.contest.name,
        "cpu_s": spread(one.cpu_s) | {"all": one.cpu_s},
        "ratio_to_mean": ratios(one.cpu_s, mean.cpu_s),
        "peak_bytes": peak_bytes,
    }


def tables(document: Document) -> Iterator[str]:
    """Yield a row for each number of updates and each rule."""
    yield machine_line(document)
    yield ""
    headings = ("updates", "rule", "processor seconds", "to the mean", "memory at most")
    yield from table(headings, (row for one in document["measured"] for row in _rows(one)))


def _rows(one: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for found in one["rules"]:
        models = found["peak_bytes"] / one["model_bytes"]
        yield (
            f"{one['updates']:,}",
            f"`{found['rule']}`",
            f"{found['cpu_s']['median']:.4f}",
            within(found["ratio_to_mean"]),
            f"{size(found['peak_bytes'])}, {models:.1f} models",
        )


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.coordinator.rules")
