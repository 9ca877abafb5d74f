"""The page results.md: the paper's tables and figures computed anew, from the files below results/."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedpatch.simulator.paper.comparison import Comparison, compare, count, tables
from fedpatch.simulator.paper.experiments import Cell, cells_of, select_cells
from fedpatch.simulator.paper.recheck import Recheck
from fedpatch.simulator.paper.results import Result, Results
from fedpatch.simulator.paper.tuning import choose_rates
from scripts.reference.markdown import render, table

RESULTS = Path(__file__).resolve().parents[2] / "results"
_POLICIES = ("none", "stats", "affine", "all")
_STRATEGIES = {"fedavg": "FedAvg", "fedadam": "FedAdam", "fedavg-adam": "FedAvg-Adam"}
_MARKED = "\\*"


def page() -> str:
    """Return the page."""
    store = Results(RESULTS)
    mnist = compare(store, select_cells("table2", "mnist"))
    return render(
        "results.md",
        table2_mnist=grid(mnist),
        table2_mnist_count=str(count(mnist)),
        table2_cifar10=grid(computed(compare(store, select_cells("table2", "cifar10")))),
        table3_mnist=grid(computed(compare(store, select_cells("table3", "mnist/*/none,mnist/*/all,mnist/*/affine")))),
        table3_mnist_count=str(count(compare(store, select_cells("table3", "mnist/*/all,mnist/*/affine")))),
        aligned=grid(computed(compare(store, cells_of("aligned")))),
        tuned=tuned(store),
        rechecks=rechecks(store),
        mtfl=rounds_range(store, "mnist/fedavg-adam/affine"),
        fl=rounds_range(store, "mnist/fedavg/none"),
        fig5=fig5(store),
        equation_10=equation_10(),
        demo_task=demo_task(),
    )


def computed(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons that have a result."""
    return [one for one in comparisons if one.results]


def grid(comparisons: Sequence[Comparison]) -> str:
    """Format a table of the paper: ours / the paper's rounds, a row for each strategy and policy."""
    if not comparisons:
        return "No cell is computed yet.\n"
    (one,) = tables(comparisons)
    rows = [(*row.names, *("" if entry is None else _entry(entry) for entry in row.entries)) for row in one.rows]
    return table(one.headings, rows)


def _entry(one: Comparison) -> str:
    paper = "?" if not one.cell.compared else "X" if one.cell.paper is None else str(one.cell.paper)
    return f"{one.ours()} / {paper}{_MARKED if one.within is False else ''}"


def tuned(store: Results) -> str:
    """Format the cells with tuned learning rates, with the rates and the number of seeds."""
    rows = []
    for cell in cells_of("tuned"):
        chosen = choose_rates(cell, store)
        (one,) = compare(store, [chosen])
        if one.results and chosen.rates is not None:
            client, server = chosen.rates
            rates = f"{client}" if server is None else f"{client}, server {server}"
            rows.append((f"`{cell.short_name}`", rates, str(len(one.results)), _entry(one)))
    return table(("cell", "learning rate", "seeds", "ours / paper"), rows) if rows else "No cell is computed yet.\n"


def rechecks(store: Results) -> str:
    """Format the cells that were computed on another processor too, with the differences."""
    rows = []
    for folder in sorted(path for path in (store.folder / "rechecks").glob("*") if path.is_dir()):
        again = Results(folder)
        for cell in (cell for which in ("table2", "table3") for cell in cells_of(which)):
            pairs = [_recheck(cell, seed, store, again) for seed in again.seeds(cell)]
            if pairs:
                rows.append(_recheck_row(cell, pairs))
    return table(("cell", "seeds", "rounds, recorded", "rounds, again", "largest difference of UA"), rows)


def _recheck(cell: Cell, seed: int, store: Results, again: Results) -> Recheck:
    recorded, new = store.read(cell, seed), again.read(cell, seed)
    if recorded is None or new is None:
        raise FileNotFoundError(f"{cell.name}, seed {seed}: one of the two results is missing")
    return Recheck(recorded, new)


def _recheck_row(cell: Cell, pairs: Sequence[Recheck]) -> tuple[str, ...]:
    def rounds(results: Iterable[Result]) -> str:
        return ", ".join("X" if one.rounds_to_target is None else str(one.rounds_to_target) for one in results)

    largest = max(one.largest_difference for one in pairs)
    seeds = ", ".join(str(one.again.study.seed) for one in pairs)
    before, now = rounds(one.recorded for one in pairs), rounds(one.again for one in pairs)
    return f"`{cell.name}`", seeds, before, now, f"{largest:.3f}"


def rounds_range(store: Results, pattern: str) -> str:
    """Return the smallest and the largest mean number of rounds of some cells of Table 2, as `6 to 15`."""
    found = [one.mean_rounds for one in compare(store, select_cells("table2", pattern)) if one.mean_rounds is not None]
    return f"{min(found):.0f} to {max(found):.0f}"


def fig5(store: Results) -> str:
    """Format the user accuracies of Fig. 5 for MNIST, 200 clients, all of them selected."""
    rows = [
        (one.cell.strategy, one.cell.private, f"{one.user_accuracy:.3f}", f"{one.best_user_accuracy:.3f}")
        for one in compare(store, select_cells("fig5", "mnist/*/W200/C1.0"))
        if one.user_accuracy is not None
    ]
    return table(("algorithm", "private", "UA after 200 rounds", "best round"), rows)


def equation_10() -> str:
    """Format the share of neurons and clients for which Eq. (10) holds, by layer."""
    layers: list[dict[str, Any]] = json.loads((RESULTS / "fig3" / "seed0.json").read_bytes())["layers"]
    rows = []
    for name in dict.fromkeys(one["layer"] for one in layers):
        here = [one for one in layers if one["layer"] == name]
        spans = (_percent_range([one[f"share_holding_{moment}"] for one in here]) for moment in ("mean", "var"))
        rows.append((name, str(len(here)), *spans))
    return table(("layer", "rounds", "mean", "variance"), rows)


def _percent_range(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"


def demo_task() -> str:
    """Format the rounds to target of each strategy and policy on the demo's task."""
    rows = []
    for strategy, name in _STRATEGIES.items():
        outcomes = [json.loads((RESULTS / "demo-task" / f"{strategy}-{one}.json").read_bytes()) for one in _POLICIES]
        rows.append((name, *(_demo_entry(one) for one in outcomes)))
    return table(("completed rounds when UA is first 0.97 (of 60)", *(f"`{one}`" for one in _POLICIES)), rows)


def _demo_entry(outcome: dict[str, Any]) -> str:
    reached = outcome["rounds_to_target"]
    return str(reached) if reached is not None else f"X (best UA {max(outcome['curve']):.3f})"
