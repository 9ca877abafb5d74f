"""Writes the tables of results/benchmarks/*.json into docs/explanation/performance.md.

Run `python -m benchmarks.support.write_tables`.

There each stands between two comments, `<!-- tables of NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.coordinator import aggregation
from benchmarks.device import device
from benchmarks.network import coordination_tables
from benchmarks.support.documents import Document, read_document
from benchmarks.support.programs import ROOT

PAGE = ROOT / "docs" / "explanation" / "performance.md"
RESULTS = ROOT / "results" / "benchmarks"
TABLES: dict[str, Callable[[Document], Iterable[str]]] = {
    "coordination": coordination_tables.tables,
    "aggregation": aggregation.tables,
    "device": device.tables,
}

_PLACE = re.compile(r"(<!-- tables of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, results: Path = RESULTS) -> str:
    """The page with the tables of the documents in `results`; a place whose document is absent stays as it is."""

    def fill(place: re.Match[str]) -> str:
        name = place[2]
        if not (results / f"{name}.json").exists():
            return place[0]
        lines = "\n".join(TABLES[name](read_document(results / f"{name}.json", name)))
        return f"{place[1]}\n{lines}\n\n{place[3]}"

    return _PLACE.sub(fill, page)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
