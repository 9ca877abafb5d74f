"""Comparison with the paper: rounds to target, cell by cell, with a verdict for each cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from studies.paper.experiments import TABLES, Cell
from studies.paper.results import DATASETS, Result, Results

RELATIVE_SLACK = 0.2
SLACK_ROUNDS = 3

_SLACK = f"{RELATIVE_SLACK:.0%} or {SLACK_ROUNDS} rounds".replace("%", " %")


@dataclass(frozen=True)
class Comparison:
    """A cell, its finished results by seed, and the most completed rounds of an unfinished seed."""

    cell: Cell
    results: tuple[Result, ...] = ()
    unfinished_rounds: int = 0

    @property
    def reached(self) -> tuple[int | None, ...]:
        """Rounds to target of every finished seed; None if the target was not reached."""
        return tuple(one.rounds_to_target for one in self.results)

    @property
    def mean_rounds(self) -> float | None:
        """Mean over the seeds; None if there is no seed, or a seed did not reach the target."""
        rounds = [one for one in self.reached if one is not None]
        return math.fsum(rounds) / len(rounds) if rounds and len(rounds) == len(self.reached) else None

    @property
    def within(self) -> bool | None:
        """True if ours agrees with the paper: within 20 % or 3 rounds; with its X, if fewer than half of the seeds reach it.

        Training that diverges does not reach the target. None if undecided: no result yet, or no number to compare with. An
        unfinished simulation with more rounds than can agree decides for False.
        """
        if not self.cell.compared:
            return None
        paper = self.cell.paper
        if not self.results:
            return False if paper is not None and self.unfinished_rounds >= paper + slack(paper) else None
        if paper is None:
            return 2 * sum(one is not None for one in self.reached) < len(self.reached)
        return self.mean_rounds is not None and abs(self.mean_rounds - paper) <= slack(paper)

    @property
    def user_accuracy(self) -> float | None:
        """User accuracy of the last round, mean over the seeds that have all rounds."""
        return _mean([one.user_accuracy for one in self.whole])

    @property
    def best_user_accuracy(self) -> float | None:
        """User accuracy of the best round, mean over the seeds that have all rounds."""
        return _mean([max(one.curve) for one in self.whole])

    @property
    def whole(self) -> tuple[Result, ...]:
        """The results that have all rounds, since training did not diverge."""
        return tuple(one for one in self.results if one.diverged is None)

    @property
    def diverged(self) -> int:
        """Number of the finished seeds whose training diverged."""
        return len(self.results) - len(self.whole)

    def ours(self) -> str:
        """Format the rounds: `21`, `22.3 (21-24)`, `X` not reached, `X (3 of 5: 21-24)`, `>80` not finished, `-` not begun.

        `div.` if the training of every seed diverged.
        """
        if not self.results:
            return f">{self.unfinished_rounds}" if self.unfinished_rounds else "-"
        if self.diverged == len(self.results):
            return "div."
        return format_seeds(self.reached)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "cell": self.cell.name,
            "dataset": self.results[0].dataset if self.results else None,
            "seeds": [one.study.seed for one in self.results],
            "rounds_to_target": list(self.reached),
            "mean_rounds_to_target": self.mean_rounds,
            "paper": self.cell.paper,
            "compared": self.cell.compared,
            "within": self.within,
            "unfinished_rounds": self.unfinished_rounds,
            "diverged": self.diverged,
            "user_accuracy": self.user_accuracy,
            "best_user_accuracy": self.best_user_accuracy,
            "seconds": round(math.fsum(one.seconds for one in self.results), 1),
        }


@dataclass(frozen=True)
class RoundCount:
    """Numbers of cells, of cells with a result, and of each outcome of the comparison with the paper."""

    cells: int
    finished: int
    within: int
    outside: int

    def __str__(self) -> str:
        text = f"{self.finished} of {self.cells} cells finished"
        if self.within + self.outside == 0:
            return text
        return f"{text}; {self.within} of {self.within + self.outside} within {_SLACK} of the paper's"


def compare(results: Results, cells: Sequence[Cell]) -> list[Comparison]:
    """Return every cell with all its seeds on disk. Raises UsageError if a result is damaged or has other terms."""
    return [_compare(results, cell) for cell in cells]


def count(comparisons: Sequence[Comparison]) -> RoundCount:
    """Count the outcomes of all comparisons."""
    verdicts = Counter(one.within for one in comparisons)
    return RoundCount(len(comparisons), sum(bool(one.results) for one in comparisons), verdicts[True], verdicts[False])


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return counts and comparisons as plain values."""
    return {"count": asdict(count(comparisons)), "cells": [one.to_dict() for one in comparisons]}


def tables(comparisons: Sequence[Comparison]) -> list[Grid]:
    """Return one table per data set, with the paper's layout: a row per algorithm, a column per W and C."""
    tasks = list(dict.fromkeys(one.cell.task for one in comparisons))
    return [_grid([one for one in comparisons if one.cell.task == task]) for task in tasks]


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Return the tables in Markdown: a heading and a table per data set, then the count and the meaning of the signs."""
    parts: list[str] = []
    for grid in tables(comparisons):
        parts += [f"### {grid.title}", "", _markdown_row(grid.headings), _markdown_row(["---"] * len(grid.headings))]
        parts += [_markdown_row([*row.names, *(format_entry(one) for one in row.entries)]) for row in grid.rows]
        parts.append("")
    return "\n".join([*parts, legend(comparisons)]) + "\n"


def rich_table(grid: Grid) -> Table:
    """Return a table for a terminal: green entries agree with the paper, red entries do not."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=grid.title, title_justify="left")
    for heading in grid.headings:
        table.add_column(heading, justify="right" if "=" in heading else "left", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row.names, *(Text(format_entry(one), style=_style(one)) for one in row.entries))
    return table


def legend(comparisons: Sequence[Comparison]) -> str:
    """Return the count, and how to read the tables."""
    if any(one.cell.where not in TABLES for one in comparisons):
        return f"{count(comparisons)}.\nAn entry is user accuracy after the last round, in brackets of the best round."
    return (
        f"{count(comparisons)}.\n"
        "An entry is ours / the paper's, in rounds (the mean over the seeds, and their range where they differ). "
        "-: not begun; >n: not within n rounds, unfinished; X: not reached; X (3 of 5: 21-24): reached by three of five "
        f"seeds; div.: training of each seed diverged, else X; *: not within {_SLACK}; ?: the paper misprints it."
    )


@dataclass(frozen=True)
class ComparedRow:
    """Strategy and policy, and an entry per scenario: None if the cell was not requested."""

    names: tuple[str, ...]
    entries: tuple[Comparison | None, ...]


@dataclass(frozen=True)
class Grid:
    """A table; `headings` has those of names and entries."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[ComparedRow, ...]


def _compare(results: Results, cell: Cell) -> Comparison:
    finished = (results.read(cell, seed) for seed in results.seeds(cell))
    going_on = max((results.rounds_done(cell, seed) for seed in results.unfinished_seeds(cell)), default=0)
    return Comparison(cell, tuple(one for one in finished if one is not None), going_on)


def _grid(comparisons: Sequence[Comparison]) -> Grid:
    scenarios = sorted({(one.cell.clients, one.cell.participation) for one in comparisons})
    by_row: dict[tuple[str, ...], dict[tuple[int, float], Comparison]] = {}
    for one in comparisons:
        strategy = f"{one.cell.strategy} {one.cell.rates_name}" if one.cell.names_rates else one.cell.strategy
        row = by_row.setdefault((strategy, one.cell.private), {})
        row[one.cell.clients, one.cell.participation] = one
    return Grid(
        datasets(comparisons),
        ("strategy", "private", *(f"W={clients} C={participation}" for clients, participation in scenarios)),
        tuple(ComparedRow(names, tuple(row.get(one) for one in scenarios)) for names, row in by_row.items()),
    )


def datasets(comparisons: Sequence[Comparison]) -> str:
    """Return the name of the data; both names if only some results used a copy."""
    named = dict.fromkeys(result.dataset for one in comparisons for result in one.results)
    return " and ".join(named) or DATASETS.get(comparisons[0].cell.task, comparisons[0].cell.task)


def format_seeds(rounds: Sequence[int | None]) -> str:
    """Format rounds to target by seed: their mean and range, or the number of seeds that reach the target.

    Example:
        >>> format_seeds([21, 24, 22]), format_seeds([21, None, 24]), format_seeds([None])
        ('22.3 (21-24)', 'X (2 of 3: 21-24)', 'X')
    """
    reached = [one for one in rounds if one is not None]
    if not reached:
        return "X"
    low, high = min(reached), max(reached)
    span = str(low) if low == high else f"{low}-{high}"
    if len(reached) < len(rounds):
        return f"X ({len(reached)} of {len(rounds)}: {span})"
    return span if low == high else f"{math.fsum(reached) / len(reached):.3g} ({span})"


def format_entry(one: Comparison | None) -> str:
    """Format ours / the paper's rounds, with a star if they differ; for a figure, the last and the best user accuracy."""
    if one is None:
        return ""
    if one.cell.where not in TABLES:
        if one.user_accuracy is None or one.best_user_accuracy is None:
            return one.ours()
        return f"{one.user_accuracy:.3f} ({one.best_user_accuracy:.3f})"
    paper = format_rounds(one.cell.paper) if one.cell.compared else "?"
    return f"{one.ours()} / {paper}{'*' if one.within is False else ''}"


def _style(one: Comparison | None) -> str:
    return "" if one is None or one.within is None else "green" if one.within else "red"


def _markdown_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts).replace('*', chr(92) + '*')} |"


def format_rounds(rounds: int | None) -> str:
    """Format rounds to target; X for a target that is not reached."""
    return "X" if rounds is None else str(rounds)


def slack(paper: int) -> float:
    """Return the greatest difference in rounds with which a cell agrees with the paper."""
    return max(RELATIVE_SLACK * paper, SLACK_ROUNDS)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
