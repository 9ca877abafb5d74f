"""The testbed's table, beside Table 4 of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.support.documents import table
from benchmarks.testbed.cells import DATASETS, ENCODINGS, PAPER, TITLES, Cell

PARTS = ("down", "client", "up", "server")
_HEADINGS = (
    "",
    "updates as",
    "s per round (least to most)",
    "% down",
    "% client",
    "% up",
    "% server",
    "MB down + up",
    "paper: s per round",
    "down / client / up / server",
)


def markdown(found: Mapping[Cell, dict[str, Any]], *, plain: bool = False) -> Iterator[str]:
    """Yield the table of each dataset, then user accuracy round by round with encodings off and on."""
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        yield DATASETS[dataset].model
        yield ""
        rows = [_row(cell, document) for cell, document in found.items() if cell.dataset == dataset]
        yield from _table(_HEADINGS, rows, plain=plain)
        yield ""
        yield from _accuracies(found, dataset, plain=plain)


def shares(document: dict[str, Any]) -> dict[str, float]:
    """Return the percentage of each part in the time of all rounds."""
    rounds = document["rounds"]
    total = sum(one["round_s"] for one in rounds)
    return {part: 100.0 * sum(one.get(f"{part}_s", 0.0) for one in rounds) / total for part in PARTS}


def _row(cell: Cell, document: dict[str, Any]) -> list[str]:
    rounds = document["rounds"]
    seconds = [one["round_s"] for one in rounds]
    of = shares(document)
    travels = cell.scheme != "independent"
    moved = sum(one["bytes_down"] + one["bytes_up"] for one in rounds) / len(rounds) / 1e6 if travels else 0.0
    paper = PAPER.get((cell.dataset, cell.scheme))
    return [
        TITLES[cell.scheme],
        ENCODINGS[cell.encodings] if travels else "-",
        f"{statistics.mean(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
        *(f"{of[part]:.1f}" for part in PARTS),
        f"{moved:.1f}",
        f"{paper.round_s:.0f}" if paper else "-",
        f"{paper.down:.0f} / {paper.client:.0f} / {paper.up:.0f} / {paper.server:.0f}" if paper else "-",
    ]


def _accuracies(found: Mapping[Cell, dict[str, Any]], dataset: str, *, plain: bool) -> Iterator[str]:
    curves = {
        f"{TITLES[cell.scheme]}, {ENCODINGS[cell.encodings]}": [one["user_accuracy"] for one in document["rounds"]]
        for cell, document in found.items()
        if cell.dataset == dataset and cell.scheme != "independent"
    }
    if not curves:
        return
    most = max(len(curve) for curve in curves.values())
    headings = ["user accuracy before round", *(str(number) for number in range(1, most + 1))]
    rows = [[name, *(f"{value:.3f}" for value in curve)] for name, curve in curves.items()]
    yield from _table(headings, rows, plain=plain)
    yield ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, plain: bool) -> Iterator[str]:
    if plain:
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        return
    yield from table(headings, rows)
