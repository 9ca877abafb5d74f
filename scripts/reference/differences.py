"""Tables of results.md on cells that differ from the paper's: experiments beside each, and the grids of learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedpatch.simulator.paper.comparison import RELATIVE_SLACK, SLACK_ROUNDS, Comparison, compare
from fedpatch.simulator.paper.experiments import (
    RATE_GRID,
    SPLIT_CLIENTS,
    TUNED_STRATEGIES,
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

NEAR_TARGET = 0.005
"""User accuracy: a run that is so near the target at the paper's round differs from it by less than two seeds do."""


def entry(one: Comparison) -> str:
    """Format ours / the paper's rounds, with a star where they differ."""
    paper = "?" if not one.cell.compared else "X" if one.cell.paper is None else str(one.cell.paper)
    return f"{one.ours()} / {paper}{chr(92) + '*' if one.within is False else ''}"


def differing(store: Results) -> list[Comparison]:
    """Return the cells of Table 2, MNIST, that differ from the paper's."""
    return [one for one in compare(store, select_cells("table2", "mnist")) if one.within is False]


def differing_table(store: Results) -> str:
    """Format the differing cells with the experiments that were made on each."""
    rows = []
    for one in differing(store):
        rows.append((f"`{one.cell.short_name.removeprefix('mnist/')}`", entry(one), *_experiments(store, one)))
    return table(
        ("cell", "ours / paper", "paper in our range", "UA at the paper's round", "aligned split", "rates of a grid"),
        rows,
    )


def _experiments(store: Results, one: Comparison) -> tuple[str, str, str, str]:
    again = aligned(store, one.cell)
    found = rates_like_the_papers(store, one.cell)
    near = f"{_rates(found[0])}: {_outcome(found[1])}" if found else ""
    return (
        "yes" if in_range(one) else "",
        f"{accuracy_at_paper(one):.3f}" if slower(one) else "",
        entry(again) if again is not None else "",
        near,
    )


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


def aligned(store: Results, cell: Cell) -> Comparison | None:
    """Return the same cell with the aligned split, where it is computed."""
    if cell.clients != SPLIT_CLIENTS:
        return None
    (one,) = compare(store, select_cells("aligned", cell.short_name))
    return one if one.results else None


def trials(store: Results, cell: Cell) -> list[tuple[Cell, Result]]:
    """Return the finished trials of a cell's grid of learning rates."""
    found = [(one, store.read(one, TUNING_SEED)) for one in rate_cells(replace(cell, where="tuned"))]
    return [(one, result) for one, result in found if result is not None]


def rates_like_the_papers(store: Results, cell: Cell) -> tuple[Cell, Result] | None:
    """Return the trial whose rounds are nearest to the paper's, where that is within the limits of agreement."""
    if cell.strategy not in TUNED_STRATEGIES or cell.paper is None:
        return None
    paper = cell.paper
    away = [
        (abs(result.rounds_to_target - paper), place, one, result)
        for place, (one, result) in enumerate(trials(store, cell))
        if result.rounds_to_target is not None
    ]
    if not away or min(away)[0] > max(RELATIVE_SLACK * paper, SLACK_ROUNDS):
        return None
    return min(away)[2:]


def explained(store: Results) -> dict[str, str]:
    """Return the words on the differing cells: their number, and how many of them each experiment covers."""
    cells = differing(store)
    split = [one for one in cells if (again := aligned(store, one.cell)) and _reaches(again) and not _reaches(one)]
    rest = [one for one in cells if one not in split]
    threshold = [one for one in rest if slower(one) and accuracy_at_paper(one) >= TARGET_UA["mnist"] - NEAR_TARGET]
    rest = [one for one in rest if one not in threshold]
    rates = [one for one in rest if rates_like_the_papers(store, one.cell)]
    left = [one for one in rest if one not in rates]
    return {
        "differing_count": str(len(cells)),
        "by_split": str(len(split)),
        "by_threshold": str(len(threshold)),
        "by_rates": str(len(rates)),
        "unexplained": ", ".join(f"`{one.cell.short_name.removeprefix('mnist/')}`" for one in left) or "none",
        "unexplained_count": str(len(left)),
    }


def _reaches(one: Comparison) -> bool:
    return one.mean_rounds is not None


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
        for client in dict.fromkeys(client for client, _ in rates)
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
    return f"`{cell.private}/W{cell.clients}/C{cell.participation}`"


def _rates(cell: Cell) -> str:
    client, server = cell.rates or (0.0, None)
    return f"{client:g}" if server is None else f"{client:g}, server {server:g}"
