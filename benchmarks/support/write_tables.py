"""Writes the tables of results/benchmarks/NAME.json into results/benchmarks/NAME.md.

Run `python -m benchmarks.support.write_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.coordinator import aggregation, rules
from benchmarks.device import device
from benchmarks.masking import cost, round_time
from benchmarks.network import blob_stores, coordination_tables, models_by_url, registries
from benchmarks.support.documents import Document, read_document
from benchmarks.support.programs import ROOT
from benchmarks.training import buffered_rounds

RESULTS = ROOT / "results" / "benchmarks"
TABLES: dict[str, Callable[[Document], Iterable[str]]] = {
    "coordination": coordination_tables.tables,
    "registries": registries.tables,
    "aggregation": aggregation.tables,
    "rules": rules.tables,
    "device": device.tables,
    "device-steps": device.tables,
    "masked-cost": cost.tables,
    "masked-round-time": round_time.tables,
    "buffered-rounds": buffered_rounds.tables,
    "blob-stores": blob_stores.tables,
    "models-by-url": models_by_url.tables,
}
_NAMES = {
    "device-steps": device.BENCHMARK,
    "buffered-rounds": buffered_rounds.BENCHMARK,
}


def tables_text(name: str, results: Path = RESULTS) -> str:
    """Return the Markdown of a benchmark's tables, from the document of that name in `results`."""
    lines = TABLES[name](read_document(results / f"{name}.json", _NAMES.get(name, name)))
    return "\n".join([f"# Benchmark: {name}", "", *lines, ""])


def main() -> None:
    """Write the tables of all benchmarks."""
    for name in TABLES:
        (RESULTS / f"{name}.md").write_text(tables_text(name), "utf-8")


if __name__ == "__main__":
    main()
