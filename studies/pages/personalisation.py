"""The page methods.md: methods of personalisation beside learning alone, from the files below results/personalisation.

`python -m studies.pages.personalisation` draws the figure.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.pfllib_methods import FEDPATCH, PFLLIB, PeerCell
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.simulator.comparison.cells import TUNING_SEED, ComparisonCell, arm_of
from fedpatch.simulator.comparison.methods import parse_methods
from fedpatch.simulator.comparison.recommend import rows
from fedpatch.simulator.comparison.tables import STEM, TaskTable, cells, draw, headings
from scripts.reference.markdown import render, table
from studies.pages import RESULTS, TEMPLATES

FOLDER = RESULTS / "personalisation"
TASKS = {
    "mnist.json": "MNIST",
    "cifar10.json": "CIFAR-10 (JPEG q75)",
    "sensor-fleet.json": "sensor fleet",
    "voice-commands.json": "voice commands",
}
METHODS = parse_methods("fedavg,fedprox,fedbn,fedper,fedrep:1,fedbabu,ditto,pfedme:3")
_METRIC = MetricTerms()


def page() -> str:
    """Return the page."""
    peer = _read(FOLDER / "pfllib.json")
    return render(
        TEMPLATES / "methods.md",
        wins=wins(_documents()),
        pfllib=pfllib(peer),
        commit=peer["terms"]["pfllib"][:12],
    )


def tables() -> str:
    """Return the tables of all figures, a section for each task."""
    sections = "\n".join(_section(title, document) for title, document in _documents().items())
    return f"# Methods of personalisation, all figures\n\n{sections}"


def _documents() -> dict[str, dict[str, Any]]:
    return {title: _read(FOLDER / name) for name, title in TASKS.items() if (FOLDER / name).exists()}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def task_table(title: str, document: Mapping[str, Any]) -> TaskTable:
    """Return the table of a task, over the seeds that have cells of all methods."""
    found = [ComparisonCell(**one) for one in document["cells"]]
    own = [(method, _reported([one for one in found if one.options == method.options()])) for method in METHODS]
    present = [(method, by_seed) for method, by_seed in own if by_seed]
    seeds = sorted(set.intersection(*(set(by_seed) for _, by_seed in present)))
    arms = [arm_of(method, [by_seed[seed] for seed in seeds]) for method, by_seed in present]
    return TaskTable(title, len(seeds), _METRIC, rows(arms, _METRIC))


def _reported(found: Sequence[ComparisonCell]) -> dict[int, ComparisonCell]:
    """Return the cells of a method by seed, with the learning rate that was chosen."""
    tried = {one.learning_rate: one.mean for one in found if one.seed == TUNING_SEED and not one.broken}
    rates = [max(tried, key=lambda rate: tried[rate])] if tried else sorted({one.learning_rate for one in found})[:1]
    return {one.seed: one for one in found if one.seed != TUNING_SEED and one.learning_rate in rates}


def _section(title: str, document: Mapping[str, Any]) -> str:
    terms, one = document["terms"], task_table(title, document)
    tried = sorted({cell["learning_rate"] for cell in document["cells"]})
    chosen = "the best of " + ", ".join(f"{rate:g}" for rate in tried) if len(tried) > 1 else f"{tried[0]:g} for all"
    words = (
        f"{terms['clients']} devices, {terms['participation']:.0%} of them in each of {terms['rounds']} rounds, "
        f"{one.seeds} seed{'s' if one.seeds > 1 else ''}; learning rate: {chosen}."
    )
    lines = [(*cells(row, one.seeds), f"{row.learning_rate:g}") for row in one.rows]
    parts = [f"## {title}", "", words, "", table((*headings(_METRIC, None), "rate"), lines)]
    return "\n".join([*parts, f"`{re.sub(' --(workers|out) [^ ]+', '', document['command'])}`", ""])


def wins(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Format user accuracy above learning alone, in points, of each method on each task."""
    found = {title: {row.name: row.mean for row in task_table(title, one).rows} for title, one in documents.items()}
    lines = []
    for method in METHODS[:-1]:
        name = str(method)
        gains = (100 * (own[name] - own["independent"]) if name in own else None for own in found.values())
        lines.append(
            (
                f"`{name}`",
                f"`{method.options()}`",
                *("-" if one is None else f"{round(one, 1) + 0.0:+.1f}" for one in gains),
            )
        )
    lines.append(("UA of learning alone", "", *(f"{own['independent']:.3f}" for own in found.values())))
    return table(("method", "options", *found), lines)


def pfllib(document: Mapping[str, Any]) -> str:
    """Format accuracy of PFLlib and of fedpatch, with the difference in points, seed by seed."""
    found = {(cell.method, cell.side, cell.seed): cell for cell in (PeerCell(**one) for one in document["cells"])}
    lines = []
    for method in dict.fromkeys(name for name, *_ in found):
        seeds = sorted(seed for name, side, seed in found if name == method and side == FEDPATCH)
        ours, theirs = ([found[method, side, seed].accuracy for seed in seeds] for side in (FEDPATCH, PFLLIB))
        gaps = [100 * (one - other) for one, other in zip(ours, theirs, strict=True)]
        spread = f" ({min(gaps):+.2f} to {max(gaps):+.2f})" if len(gaps) > 1 else ""
        means = (f"{statistics.fmean(values):.4f}" for values in (theirs, ours))
        lines.append((f"`{method}`", str(len(seeds)), *means, f"{statistics.fmean(gaps):+.2f}{spread}"))
    return table(("method", "seeds", "PFLlib", "fedpatch", "difference in points"), lines)


def main() -> None:
    """Draw the figure."""
    tables: Sequence[TaskTable] = [
        task_table(title, _read(FOLDER / name)) for name, title in TASKS.items() if (FOLDER / name).exists()
    ]
    draw(tables, FOLDER / STEM)


if __name__ == "__main__":
    main()
