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
    cells_of,
    rate_cells,
    select_cells,
    study_of,
)
from fedpatch.simulator.paper.results import Result, Results
from scripts.reference.markdown import span, table

_UNBROKEN = "\u00a0"
_STAR = "\\*"
_LOWER_TARGETS = (0.95, 0.96, 0.965)


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
                published_rounds(published(store, one.cell)),
                ", ".join(f"{other.cell.where} {other.ours()}" for other in other_splits(store, one)),
                f"{rates_text(near[0])}: {outcome(near[1])}" if near else "",
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


def published(store: Results, cell: Cell, *, corrected: bool = False) -> list[PublishedCell]:
    """Return the results of a cell by the authors' published code, as it is or `corrected`, one for each seed."""
    path = store.folder / "published" / "mnist.json"
    cells = json.loads(path.read_bytes())["cells"] if path.exists() else []
    found = [PublishedCell(**one) for one in cells if one["cell"] == cell.name]
    return [one for one in found if one.corrected is corrected]


def published_table(store: Results) -> str:
    """Format the cells that the published code was run on: its rounds as it is and corrected, beside ours and the paper's."""
    rows = []
    for one in compare(store, [*select_cells("table2", "mnist"), *select_cells("table3", "mnist")]):
        texts = [published_rounds(published(store, one.cell, corrected=corrected)) for corrected in (False, True)]
        if any(texts):
            name = f"{_named(one.cell)}{', noisy clients' if one.cell.where == 'table3' else ''}"
            rows.append((name, *texts, one.ours(), _rounds(one.cell.paper)))
    return table(("cell", "published code", "corrected", "ours", "paper"), rows)


def collapses(store: Results, cells: Sequence[Cell]) -> str:
    """Return in how many of the cells user accuracy by the published code falls from above 0.9 to guessing, and the rounds."""
    found = [result for cell in cells for result in published(store, cell)]
    rounds = [at for one in found if (at := _collapse(one)) is not None]
    return f"{len(rounds)} of {len(found)} cells (round {span(min(rounds), max(rounds))})" if rounds else "no cell"


def _collapse(one: PublishedCell) -> int | None:
    learned = next((at for at, accuracy in enumerate(one.curve) if accuracy > 0.9), one.rounds)
    return next((at for at, accuracy in enumerate(one.curve) if at > learned and accuracy < 0.2), None)


def published_rounds(results: Sequence[PublishedCell]) -> str:
    """Format rounds to target, seed by seed; `>100` where 100 rounds do not reach it."""
    return ", ".join(f">{one.rounds}" if one.rounds_to_target is None else str(one.rounds_to_target) for one in results)


def differs_alike(published_one: PublishedCell, one: Comparison) -> bool:
    """Return whether a result of the published code differs from the paper's rounds too, on the same side as ours."""
    paper = one.cell.paper
    if paper is None:
        return False
    return abs(published_one.rounds - paper) > slack(paper) and slower(one) == (published_one.rounds > paper)


def with_split(store: Results, cell: Cell, split: str) -> Comparison | None:
    """Return the same cell with another split, where it is computed."""
    (one,) = compare(store, select_cells(split, cell.short_name))
    return one if one.results else None


def other_splits(store: Results, one: Comparison) -> list[Comparison]:
    """Return the same cell with each other split, where it is computed."""
    return [other for split in SPLITS if (other := with_split(store, one.cell, split)) is not None]


def agreement_on_even(store: Results) -> dict[str, str]:
    """Return how many cells with 400 clients have seeds on the split `even` too, and how many agree on each of the splits.

    Both splits have the same seeds in this comparison.
    """
    pairs = [
        (_with_seeds_of(one, even), _with_seeds_of(even, one))
        for one in compare(store, select_cells("table2", "mnist/*/W400"))
        if (even := with_split(store, one.cell, "even")) is not None
    ]
    return {
        "even_cells": str(len(pairs)),
        "even_agree": str(sum(even.within is True for _, even in pairs)),
        "even_shard_agree": str(sum(one.within is True for one, _ in pairs)),
    }


def _with_seeds_of(one: Comparison, other: Comparison) -> Comparison:
    seeds = {result.study.seed for result in other.results}
    return replace(one, results=tuple(result for result in one.results if result.study.seed in seeds))


def splits_table(store: Results) -> str:
    """Format the cells that are computed with another split, beside the published code's split."""
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

    A trial with the cell's own rates does not count, and one with the split `even` only where no other agrees.
    """
    if cell.strategy not in TUNED_STRATEGIES or cell.paper is None:
        return None
    study = study_of(cell, 0)
    paper, own = cell.paper, (study.learning_rate, study.server_learning_rate)
    for where in TRIALS:
        away = [
            (abs(result.rounds_to_target - paper), place, one, result)
            for place, (one, result) in enumerate(trials(store, cell, where))
            if result.rounds_to_target is not None and (where != TUNING or one.rates != own)
        ]
        if away and min(away)[0] <= slack(paper):
            return min(away)[2:]
    return None


def explained(store: Results) -> dict[str, str]:
    """Return the numbers of differing cells, and a table of the experiments with rounds like the paper's.

    A cell counts for the first experiment that fits.
    """
    experiments: dict[str, Callable[[Comparison], bool]] = {
        "another split of the test data": lambda one: any(other.within for other in other_splits(store, one)),
        "two splits: the paper's rounds lie between theirs": lambda one: _between_splits(store, one, finite=True),
        "two splits: one takes fewer rounds, the other never reaches the target": lambda one: _between_splits(
            store, one, finite=False
        ),
        "other learning rates (one seed)": lambda one: _trial_like_the_papers(store, one.cell) == TUNING,
        "other learning rates on another split (one seed)": lambda one: (
            _trial_like_the_papers(store, one.cell) == TUNING_EVEN
        ),
        "other seeds: the paper's mean lies between our fastest and slowest": in_range,
    }
    cells = differing(store)
    names: dict[str, list[str]] = {name: [] for name in (*experiments, "**open**")}
    for one in cells:
        names[next((name for name, fits in experiments.items() if fits(one)), "**open**")].append(_named(one.cell))
    rows = [
        (name, str(len(found)), ", ".join(found) if len(found) < 3 else "") for name, found in names.items() if found
    ]
    played = [(one, results) for one in cells if (results := published(store, one.cell))]
    return agreement_on_even(store) | {
        "differing_count": str(len(cells)),
        "explained_count": str(len(cells) - len(names["**open**"])),
        "explained": table(("experiment with rounds like the paper's", "cells", ""), rows),
        "published_count": str(len(played)),
        "published_differs": str(sum(all(differs_alike(each, one) for each in results) for one, results in played)),
    }


def _trial_like_the_papers(store: Results, cell: Cell) -> str:
    """Return the table of the trial that takes as many rounds as the paper; "" where none does."""
    found = rates_like_the_papers(store, cell)
    return "" if found is None else found[0].where


def _between_splits(store: Results, one: Comparison, *, finite: bool) -> bool:
    """Return whether the paper's rounds lie between those of two splits; `finite`: and each split reaches the target."""
    means = [each.mean_rounds for each in (one, *other_splits(store, one))]
    rounds = [math.inf if mean is None else mean for mean in means if mean is not None or not finite]
    return len(rounds) > 1 and one.cell.paper is not None and min(rounds) <= one.cell.paper <= max(rounds)


def grids(store: Results) -> str:
    """Format the trials of learning rates: a row for each cell and rate of the clients, a column for each server rate."""
    parts = []
    for where in TRIALS:
        for strategy in reversed(TUNED_STRATEGIES):
            cells = [one for one in cells_of("tuned") if one.strategy == strategy and trials(store, one, where)]
            if cells:
                parts.append(_grid(store, strategy, cells, where))
    return "\n".join(parts) if parts else "No rate is tried yet.\n"


def _grid(store: Results, strategy: str, cells: Sequence[Cell], where: str) -> str:
    rates = RATE_GRID[strategy]
    title = f"{strategy}, split {SPLIT_OF[where]}" if where in SPLIT_OF else strategy
    outcomes = {(cell, one.rates): outcome(result) for cell in cells for one, result in trials(store, cell, where)}
    if rates[0][1] is None:
        rows = [
            (_named(cell), *(outcomes.get((cell, one), "-") for one in rates), _rounds(cell.paper)) for cell in cells
        ]
        return table((title, *(f"{rate:g}" for rate, _ in rates), "paper"), rows)
    servers = list(dict.fromkeys(server for _, server in rates))
    rows = [
        (
            _named(cell),
            f"{client:g}",
            *(outcomes.get((cell, (client, one)), "-") for one in servers),
            _rounds(cell.paper),
        )
        for cell in cells
        for client in sorted({of[0] for own, of in outcomes if own == cell and of is not None})
    ]
    return table((title, "clients", *(f"server {server:g}" for server in servers), "paper"), rows)


def outcome(result: Result | None) -> str:
    """Format rounds to target; of a trial that ended before it, X and the best user accuracy; - where none is finished."""
    if result is None:
        return "-"
    if result.rounds_to_target is None:
        return f"X ({max(result.curve):.3f})"
    return _rounds(result.rounds_to_target)


def _rounds(rounds: int | None) -> str:
    return "X" if rounds is None else str(rounds)


def _named(cell: Cell) -> str:
    """Return the name without the task; a space instead of each slash lets a line break there."""
    return cell.short_name.removeprefix(f"{cell.task}/").replace("/", " ")


def rates_text(cell: Cell) -> str:
    """Format the learning rates of a trial, and its split where that is not the published one."""
    client, server = cell.rates or (0.0, None)
    split = f"{SPLIT_OF[cell.where]}, " if cell.where in SPLIT_OF else ""
    return split + (f"{client:g}" if server is None else f"{client:g}, server {server:g}")
