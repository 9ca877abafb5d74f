"""The testbed's table, beside Table 4 of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support.documents import table
from benchmarks.support.json_lines import JsonLines
from benchmarks.testbed.cells import DATASETS, ENCODINGS, PAPER, TITLES, Cell

PARTS = ("down", "client", "up", "server")
Documents = Sequence[Mapping[str, Any]]
TestbedRecords = JsonLines[tuple[str, int]]
"""Documents by name of the cell and seed."""
_HEADINGS = (
    "",
    "updates as",
    "s per round",
    "% down",
    "% client",
    "% up",
    "% server",
    "MB down + up",
    "paper: s per round",
    "down / client / up / server",
)


def records_in(path: Path) -> TestbedRecords:
    """Return the documents in a file that `python -m benchmarks.testbed.run` writes."""
    return JsonLines(path, lambda record: (record["cell"], record["seed"]))


def documents_of(records: TestbedRecords, cell: Cell) -> Documents:
    """Return the documents of a cell, seed by seed."""
    found = [one for one in records.records() if one["cell"] == cell.name]
    return sorted(found, key=lambda one: one["seed"])


def markdown(found: Mapping[Cell, Documents], *, plain: bool = False) -> Iterator[str]:
    """Yield the table of each dataset, then user accuracy round by round with encodings off and on.

    Args:
        found: A document of each seed, by cell. Figures are means of the seeds, with the least and the largest in brackets.
        plain: Align columns with spaces; else Markdown.
    """
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        yield DATASETS[dataset].model
        yield ""
        rows = [_row(cell, documents) for cell, documents in found.items() if cell.dataset == dataset]
        yield from _table(_HEADINGS, rows, plain=plain)
        yield ""
        yield from _accuracies(found, dataset, plain=plain)


def shares(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the percentage of each part in the time of all rounds."""
    rounds = document["rounds"]
    total = sum(one["round_s"] for one in rounds)
    return {part: 100.0 * sum(one.get(f"{part}_s", 0.0) for one in rounds) / total for part in PARTS}


def _share(part: str, document: Mapping[str, Any]) -> float:
    """Return the percentage of a part in the time of all rounds."""
    return shares(document)[part]


def communication(document: Mapping[str, Any]) -> float:
    """Return the percentage of downloads and uploads in the time of all rounds."""
    of = shares(document)
    return of["down"] + of["up"]


def mean_and_range(documents: Documents, measure: Callable[[Mapping[str, Any]], float], digits: int) -> str:
    """Format the mean of a measure over the documents, with its range if the rounded values differ.

    Args:
        documents: A document of each seed.
        measure: Returns the figure of a document.
        digits: Digits after the point.
    """
    values = [measure(document) for document in documents]
    least, mean, most = (f"{one:.{digits}f}" for one in (min(values), statistics.fmean(values), max(values)))
    return mean if least == most else f"{mean} ({least}-{most})"


def _round_s(document: Mapping[str, Any]) -> float:
    """Return the mean of the rounds' seconds."""
    return statistics.fmean(one["round_s"] for one in document["rounds"])


def user_accuracy(document: Mapping[str, Any]) -> float:
    """Return the user accuracy before the last round."""
    return float(document["rounds"][-1]["user_accuracy"])


def _megabytes(document: Mapping[str, Any]) -> float:
    return statistics.fmean(one["bytes_down"] + one["bytes_up"] for one in document["rounds"]) / 1e6


def _row(cell: Cell, documents: Documents) -> list[str]:
    travels = cell.scheme != "independent"
    paper = PAPER.get((cell.dataset, cell.scheme))
    return [
        TITLES[cell.scheme],
        ENCODINGS[cell.encodings] if travels else "-",
        mean_and_range(documents, _round_s, 2),
        *(mean_and_range(documents, partial(_share, part), 1) for part in PARTS),
        mean_and_range(documents, _megabytes, 1) if travels else "-",
        f"{paper.round_s:.0f}" if paper else "-",
        f"{paper.down:.0f} / {paper.client:.0f} / {paper.up:.0f} / {paper.server:.0f}" if paper else "-",
    ]


def _accuracies(found: Mapping[Cell, Documents], dataset: str, *, plain: bool) -> Iterator[str]:
    curves = {
        f"{TITLES[cell.scheme]}, {ENCODINGS[cell.encodings]}": [
            [one["user_accuracy"] for one in document["rounds"]] for document in documents
        ]
        for cell, documents in found.items()
        if cell.dataset == dataset and cell.scheme != "independent"
    }
    if not curves:
        return
    most = max(len(curve) for by_seed in curves.values() for curve in by_seed)
    headings = ["user accuracy before round", *(str(number) for number in range(1, most + 1))]
    rows = []
    for name, by_seed in curves.items():
        means = [f"{statistics.fmean(values):.3f}" for values in zip(*by_seed, strict=True)]
        rows.append([name, *means])
    yield from _table(headings, rows, plain=plain)
    yield ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, plain: bool) -> Iterator[str]:
    if plain:
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        return
    yield from table(headings, rows)
