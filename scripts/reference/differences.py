"""Tables of experiments.md and words of results.md on cells that differ from the paper's: experiments, and rates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.peers.published_code import PublishedCell
from fedpatch.simulator.paper.comparison import Comparison, compare, slack
from fedpatch.simulator.paper.experiments import (
    RATE_GRID,
    SPLIT_OF,
    SPLITS,
    TRIALS,
    TUNED_STRATEGIES,
    TUNING,
    TUNING_EVEN,
    TUNING_SEED,
    Cell,
    Rates,
    cells_of,
    rate_cells,
    select_cells,
)
from fedpatch.simulator.paper.results import Result, Results
from fedpatch.simulator.spec.published import TARGET_UA
from scripts.reference.markdown import table

_UNBROKEN = "\u00a0"
_STAR = "\\*"
_LOWER_TARGETS = (0.95, 0.96, 0.965)
NEAR_TARGET = 0.005
"""User accuracy; about the difference of two processors in one round."""


def entry(one: Comparison) -> str:
    """Format ours / the paper's rounds, with a star where they differ."""
    paper = "?" if not one.cell.compared else "X" if one.cell.paper is None else str(one.cell.paper)
    return f"{one.ours()} /{_UNBROKEN}{paper}{_STAR if one.within is False else ''}"


def differing(store: Results) -> list[Comparison]:
    """Return the cells of Table 2, MNIST, that differ from the paper's."""
    return [one for one in compare(store, select_cells("table2", "mnist")) if one.within is False]


def differing_table(store: Results) -> str:
    """Format the differing cells with the experiments that were made on each."""
    rows = []
    for one in differing(store):
        near = rates_like_the_papers(store, one.cell)
        rows.append(
            (
                _named(one.cell),
                entry(one),
                "yes" if in_range(one) else "",
                f"{accuracy_at_paper(one):.3f}" if slower(one) else "",
                ", ".join(published_rounds(other) for other in published(store, one.cell)),
                ", ".join(f"{other.cell.where} {other.ours()}" for other in other_splits(store, one)),
                f"{_rates(near[0])}: {_outcome(near[1])}" if near else "",
            )
        )
    headings = ("in range", "UA then", "published code", "another split", "other rates")
    return table(("cell", "ours / paper", *headings), rows)


def slower(one: Comparison) -> bool:
    """Return whether ours needs more rounds than the paper's, or never reaches the target where the paper's does."""
    return one.cell.paper is not None and (one.mean_rounds is None or one.mean_rounds > one.cell.paper)


def in_range(one: Comparison) -> bool:
    """Return whether the paper's mean lies between our fastest and our slowest seed."""
    rounds = [math.inf if reached is None else reached for reached in one.reached]
    return one.cell.paper is not None and min(rounds) <= one.cell.paper <= max(rounds)


def accuracy_at_paper(one: Comparison) -> float:
    """Return the mean user accuracy when the paper's run reached the target; of a run that ended before, the last."""
    at = one.cell.paper or 0
    return math.fsum(result.curve[min(at, result.rounds)] for result in one.results) / len(one.results)


def published(store: Results, cell: Cell) -> list[PublishedCell]:
    """Return the results of a cell by the authors' published code, one for each seed."""
    path = store.folder / "published" / "mnist.json"
    cells = json.loads(path.read_bytes())["cells"] if path.exists() else []
    return [PublishedCell(**one) for one in cells if one["cell"] == cell.name]


def collapses(store: Results, cells: Sequence[Cell]) -> str:
    """Return the rounds, `18` or `17 to 19`, in which user accuracy by the published code falls from above 0.9 to guessing."""
    rounds = []
    for one in (result for cell in cells for result in published(store, cell)):
        learned = next(at for at, accuracy in enumerate(one.curve) if accuracy > 0.9)
        rounds.append(next(at for at, accuracy in enumerate(one.curve) if at > learned and accuracy < 0.2))
    return span(min(rounds), max(rounds))


def span(low: int, high: int) -> str:
    """Format a range of whole numbers, or the number that it consists of."""
    return str(low) if low == high else f"{low} to {high}"


def published_rounds(one: PublishedCell) -> str:
    """Format rounds to target, `>100` where 100 rounds do not reach it."""
    return f">{len(one.curve) - 1}" if one.rounds_to_target is None else str(one.rounds_to_target)


def published_code_differs(store: Results, one: Comparison) -> bool:
    """Return whether the authors' published code differs from the paper's rounds too, on the same side as ours."""
    return any(_differs_alike(other, one) for other in published(store, one.cell))


def _differs_alike(published_one: PublishedCell, one: Comparison) -> bool:
    paper = one.cell.paper
    if paper is None:
        return False
    rounds = len(published_one.curve) if published_one.rounds_to_target is None else published_one.rounds_to_target
    far = abs(rounds - paper) > slack(paper)
    return far and slower(one) == (rounds > paper)


def with_split(store: Results, cell: Cell, split: str) -> Comparison | None:
    """Return the same cell with another split, where it is computed."""
    (one,) = compare(store, select_cells(split, cell.short_name))
    return one if one.results else None


def other_splits(store: Results, one: Comparison) -> list[Comparison]:
    """Return the same cell with each other split, where it is computed."""
    return [other for split in SPLITS if (other := with_split(store, one.cell, split)) is not None]


def agreement_on_even(store: Results) -> dict[str, str]:
    """Return the number of cells with 400 clients on the split `even`, and of those that agree, there and on the code's."""
    pairs = [
        (one, even)
        for one in compare(store, select_cells("table2", "mnist/*/W400"))
        if (even := with_split(store, one.cell, "even")) is not None
    ]
    return {
        "even_cells": str(len(pairs)),
        "even_agree": str(sum(even.within is True for _, even in pairs)),
        "even_shard_agree": str(sum(one.within is True for one, _ in pairs)),
    }


def splits_table(store: Results) -> str:
    """Format the cells that are computed with another split, beside the paper's split."""
    rows = []
    for cell in select_cells("table2", "mnist"):
        others = [with_split(store, cell, split) for split in reversed(SPLITS)]
        if any(others):
            (here,) = compare(store, [cell])
            texts = (
                "" if one is None else f"{one.ours()}{_STAR if one.within is False else ''}" for one in (here, *others)
            )
            rows.append((_named(cell), *texts, _rounds(cell.paper)))
    return table(("cell", "`shard`", *(f"`{split}`" for split in reversed(SPLITS)), "paper"), rows)


def lower_targets(store: Results) -> str:
    """Format the rounds to lower targets of the cells without private values: the mean and the range of the seeds."""
    rows = []
    for one in compare(store, select_cells("table2", "mnist/*/none")):
        texts = (_range([_first(result, target) for result in one.results]) for target in _LOWER_TARGETS)
        rows.append((_named(one.cell), *texts, one.ours(), _rounds(one.cell.paper)))
    return table(("cell", *(f"UA {target}" for target in _LOWER_TARGETS), "UA 0.97", "paper, 0.97"), rows)


def rounds_to_lower_targets(store: Results, name: str) -> str:
    """Return the rounds of a cell of Table 2 to lower targets: the mean and the range of the seeds."""
    (one,) = compare(store, select_cells("table2", name))
    texts = (f"{_range([_first(result, target) for result in one.results])} to {target}" for target in _LOWER_TARGETS)
    return ", ".join(texts)


def _first(result: Result, target: float) -> int:
    return next(at for at, accuracy in enumerate(result.curve) if accuracy >= target)


def _range(rounds: Sequence[int]) -> str:
    mean = f"{math.fsum(rounds) / len(rounds):.3g}"
    return mean if min(rounds) == max(rounds) else f"{mean} ({min(rounds)}-{max(rounds)})"


def trials(store: Results, cell: Cell, where: str = TUNING) -> list[tuple[Cell, Result]]:
    """Return the finished trials of a cell's grid of learning rates, on the split of `where`, one of TRIALS."""
    grid = (replace(one, where=where) for one in rate_cells(replace(cell, where="tuned")))
    found = [(one, store.read(one, TUNING_SEED)) for one in grid]
    return [(one, result) for one, result in found if result is not None]


def rates_like_the_papers(store: Results, cell: Cell) -> tuple[Cell, Result] | None:
    """Return the trial whose rounds are nearest to the paper's, where that is within the limits of agreement.

    A trial with the split `even` counts where none with the cell's own split agrees.
    """
    if cell.strategy not in TUNED_STRATEGIES or cell.paper is None:
        return None
    paper = cell.paper
    for where in TRIALS:
        away = [
            (abs(result.rounds_to_target - paper), place, one, result)
            for place, (one, result) in enumerate(trials(store, cell, where))
            if result.rounds_to_target is not None
        ]
        if away and min(away)[0] <= slack(paper):
            return min(away)[2:]
    return None


def explained(store: Results) -> dict[str, str]:
    """Return the numbers of differing cells, and a table of those that each experiment covers; the first that fits counts."""
    covers: dict[str, Callable[[Comparison], bool]] = {
        "are those of another split of the test data": lambda one: any(
            other.within for other in other_splits(store, one)
        ),
        "lie between those of two splits": lambda one: _between_splits(store, one),
        "are those of other learning rates": lambda one: _trial_like_the_papers(store, one.cell) == TUNING,
        "are those of other rates on another split": lambda one: _trial_like_the_papers(store, one.cell) == TUNING_EVEN,
        "lie within our seeds": in_range,
        f"are reached with a UA at most {NEAR_TARGET} below the target": lambda one: (
            slower(one) and accuracy_at_paper(one) >= TARGET_UA["mnist"] - NEAR_TARGET
        ),
        "are not those of the published code either": lambda one: published_code_differs(store, one),
    }
    cells = left = differing(store)
    rows = []
    for name, covered in covers.items():
        found = [one for one in left if covered(one)]
        left = [one for one in left if one not in found]
        rows.append((name, str(len(found)), ", ".join(_named(one.cell) for one in found) if len(found) < 3 else ""))
    rows.append(("**open**", str(len(left)), ", ".join(_named(one.cell) for one in left)))
    played = [one for one in cells if published(store, one.cell)]
    return agreement_on_even(store) | {
        "differing_count": str(len(cells)),
        "explained_count": "all" if not left else str(len(cells) - len(left)),
        "explained": table(("the paper's rounds", "cells", ""), [row for row in rows if row[1] != "0"]),
        "published_count": str(len(played)),
        "published_differs": str(sum(published_code_differs(store, one) for one in played)),
    }


def _trial_like_the_papers(store: Results, cell: Cell) -> str:
    """Return the table of the trial that takes as many rounds as the paper; "" where none does."""
    found = rates_like_the_papers(store, cell)
    return "" if found is None else found[0].where


def _between_splits(store: Results, one: Comparison) -> bool:
    """Return whether the paper's rounds lie between those of two splits of the test examples."""
    means = [each.mean_rounds for each in (one, *other_splits(store, one))]
    rounds = [math.inf if mean is None else mean for mean in means]
    return len(rounds) > 1 and min(rounds) <= (one.cell.paper or math.inf) <= max(rounds)


def grids(store: Results) -> str:
    """Format the trials of learning rates: a row for each cell and rate of the clients, a column for each server rate."""
    parts = []
    for strategy in reversed(TUNED_STRATEGIES):
        cells = [one for one in cells_of("tuned") if one.strategy == strategy and trials(store, one)]
        if cells:
            parts.append(_grid(store, strategy, cells))
    return "\n".join(parts) if parts else "No rate is tried yet.\n"


def _grid(store: Results, strategy: str, cells: Sequence[Cell]) -> str:
    rates = RATE_GRID[strategy]
    if rates[0][1] is None:
        rows = [(_named(cell), *(_trial(store, cell, one) for one in rates), _rounds(cell.paper)) for cell in cells]
        return table((strategy, *(f"{rate:g}" for rate, _ in rates), "paper"), rows)
    servers = list(dict.fromkeys(server for _, server in rates))
    rows = [
        (_named(cell), f"{client:g}", *(_trial(store, cell, (client, one)) for one in servers), _rounds(cell.paper))
        for cell in cells
        for client in sorted({trial.rates[0] for trial, _ in trials(store, cell) if trial.rates})
    ]
    return table((strategy, "clients", *(f"server {server:g}" for server in servers), "paper"), rows)


def _trial(store: Results, cell: Cell, rates: Rates) -> str:
    found = [result for one, result in trials(store, cell) if one.rates == rates]
    return _outcome(found[0]) if found else "-"


def _outcome(result: Result) -> str:
    """Format rounds to target; of a trial that ended before it, the rounds and the best user accuracy."""
    if result.rounds_to_target is None:
        return f"X ({max(result.curve):.3f})"
    return _rounds(result.rounds_to_target)


def _rounds(rounds: int | None) -> str:
    return "X" if rounds is None else str(rounds)


def _named(cell: Cell) -> str:
    """Return the name without the task; a space instead of each slash lets a line break there."""
    return cell.short_name.removeprefix(f"{cell.task}/").replace("/", " ")


def _rates(cell: Cell) -> str:
    client, server = cell.rates or (0.0, None)
    split = f"{SPLIT_OF[cell.where]}, " if cell.where in SPLIT_OF else ""
    return split + (f"{client:g}" if server is None else f"{client:g}, server {server:g}")
