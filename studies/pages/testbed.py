"""The section on Table 4 of the page results.md, from results/testbed.jsonl."""

from __future__ import annotations

from pathlib import Path

from benchmarks.testbed.cells import CPUS, DATASETS, PAPER, Cell, cells_of
from benchmarks.testbed.table import communication, documents_of, markdown, mean_and_range, records_in, user_accuracy
from scripts.reference.markdown import span

_DATASETS = ("mnist", "cifar10")


def table4(path: Path) -> dict[str, str]:
    """Return the section's texts by placeholder.

    Args:
        path: The file that `python -m benchmarks.testbed.run` wrote.
    """
    records = records_in(path)
    found = {cell: documents for cell in cells_of(_DATASETS) if (documents := documents_of(records, cell))}
    counts = [len(documents) for documents in found.values()]
    loads = [one["machine"]["load"] for documents in found.values() for one in documents]
    texts = {
        "table4": "\n".join(markdown(found)),
        "table4_seeds": span(min(counts), max(counts)),
        "table4_load": span(*(round(limit(loads)) for limit in (min, max))),
        "table4_cpu_old": f"{CPUS['pi-2b']:g}",
        "table4_cpu_new": f"{CPUS['pi-3b']:g}",
    }
    for dataset in _DATASETS:
        paper = PAPER[dataset, "mtfl"]
        texts[f"table4_{dataset}_paper"] = f"{paper.down + paper.up:.0f}"
        texts[f"table4_{dataset}_mbit"] = f"{DATASETS[dataset].rate_bit_s / 1e6:.0f}"
        for encodings in ("on", "off"):
            documents = found[Cell(dataset, "mtfl", encodings)]
            texts[f"table4_{dataset}_{encodings}"] = mean_and_range(documents, communication, 1)
            texts[f"table4_{dataset}_{encodings}_ua"] = mean_and_range(documents, user_accuracy, 3)
    return texts
