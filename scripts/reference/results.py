"""The page results.md: the paper's tables and figures computed anew, from the files below results/."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.simulator.paper.comparison import Comparison, compare, count, tables
from fedpatch.simulator.paper.experiments import (
    RECORDED,
    TABLES,
    TUNING_SEED,
    Cell,
    cells_of,
    select_cells,
    select_named_cells,
)
from fedpatch.simulator.paper.recheck import Recheck
from fedpatch.simulator.paper.results import Results, measured_seeds
from fedpatch.simulator.paper.tuning import choose_rates
from scripts.reference import differences
from scripts.reference.markdown import render, span, table

RESULTS = Path(__file__).resolve().parents[2] / "results"
_POLICIES = ("none", "stats", "affine", "all")
_STRATEGIES = {"fedavg": "FedAvg", "fedadam": "FedAdam", "fedavg-adam": "FedAvg-Adam"}


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
        **policy_orders(mnist),
        tuned=tuned(store),
        lower_targets=differences.rounds_to_lower_targets(store, "mnist/fedadam/none/W200/C1.0"),
        **cells_in_words(store),
        origins=origins(store),
        mtfl=rounds_range(store, "mnist/fedavg-adam/affine"),
        fl=rounds_range(store, "mnist/fedavg/none"),
        fig5=fig5(store),
        equation_10=equation_10(),
        demo_task=demo_task(),
        seeds=seeds(mnist),
        affine_share=share_of_rounds(store, "mnist/fedavg/affine/W200/C1.0", "mnist/fedavg/none/W200/C1.0"),
        overtaking=overtaking(store),
        fig3_seeds=str(len(measured("fig3"))),
        **fig4(),
        **spread(store),
        **differences.explained(store),
    )


def experiments() -> str:
    """Return the page of the experiments on cells that differ from the paper's."""
    store = Results(RESULTS)
    return render(
        "experiments.md",
        differing=differences.differing_table(store),
        published=differences.published_table(store),
        splits=differences.splits_table(store),
        lower_targets=differences.lower_targets(store),
        grids=differences.grids(store),
    )


def computed(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons that have a result."""
    return [one for one in comparisons if one.results]


def grid(comparisons: Sequence[Comparison]) -> str:
    """Format a table of the paper: ours / the paper's rounds, a row for each strategy and policy."""
    if not comparisons:
        return "No cell is computed yet.\n"
    (found,) = tables(comparisons)
    names = len(found.rows[0].names)
    rows = [
        (" ".join(row.names), *("" if one is None else differences.entry(one) for one in row.entries))
        for row in found.rows
    ]
    return table((", ".join(found.headings[:names]), *found.headings[names:]), rows)


def tuned(store: Results) -> str:
    """Format the cells with tuned learning rates, with the rates and the number of seeds."""
    rows = []
    for cell in cells_of("tuned"):
        chosen = choose_rates(cell, store)
        (one,) = compare(store, [chosen])
        if one.results and chosen.rates is not None:
            client, server = chosen.rates
            rates = f"{client}" if server is None else f"{client}, server {server}"
            rows.append((f"`{cell.short_name}`", rates, str(len(one.results)), differences.entry(one)))
    return table(("cell", "learning rate", "seeds", "ours / paper"), rows) if rows else "No cell is computed yet.\n"


def _rechecked(store: Results) -> list[tuple[Cell, list[Recheck]]]:
    """Return the cells that were computed on another processor too, a pair of results for each seed."""
    found = []
    for folder in sorted(path for path in (store.folder / "rechecks").glob("*") if path.is_dir()):
        again = Results(folder)
        for cell in (cell for which in RECORDED for cell in cells_of(which)):
            pairs = [_recheck(cell, seed, store, again) for seed in again.seeds(cell)]
            if pairs:
                found.append((cell, pairs))
    return found


def spread(store: Results) -> dict[str, str]:
    """Return the largest differences between two processors: rounds to target and user accuracy."""
    pairs = [one for _, found in _rechecked(store) for one in found]
    other = [one for one in pairs if not one.same]
    rounds = [
        (abs(one.again.rounds_to_target - one.recorded.rounds_to_target), one.recorded.rounds_to_target)
        for one in other
        if one.again.rounds_to_target is not None and one.recorded.rounds_to_target is not None
    ]
    largest, of = max(rounds, default=(0, 0))
    return {
        "pairs": str(len(pairs)),
        "same_bits": str(len(pairs) - len(other)),
        "spread_rounds": f"{largest} of {of} rounds",
        "spread_ua": f"{max((one.largest_difference for one in other), default=0.0):.3f}",
    }


def _recheck(cell: Cell, seed: int, store: Results, again: Results) -> Recheck:
    recorded, new = store.read(cell, seed), again.read(cell, seed)
    if recorded is None or new is None:
        raise FileNotFoundError(f"{cell.name}, seed {seed}: one of the two results is missing")
    return Recheck(recorded, new)


def origins(store: Results) -> str:
    """Return a sentence on the results of the tables and of Fig. 5 that name commit and processor, and those that do not."""
    results = [
        result
        for which in (*TABLES, "fig5")
        for cell in named_cells(which, store)
        for seed in store.seeds(cell)
        if (result := store.read(cell, seed)) is not None
    ]
    named = sum(one.commit is not None and one.processor is not None for one in results)
    return (
        f"{named} of {len(results)} results of the tables and of Fig. 5 name commit and processor. The others are older, "
        "from an AMD EPYC; `git log --diff-filter=A -- results` has the commits that added them."
    )


def named_cells(which: str, store: Results) -> Iterable[Cell]:
    """Return the cells of a table; those of `tuned` have the rates that were chosen."""
    return (choose_rates(cell, store) if which == "tuned" else cell for cell in cells_of(which))


def rounds_range(store: Results, pattern: str) -> str:
    """Return the fewest and the most rounds of all runs of some cells of Table 2, as `6 to 17 rounds in 19 of 20 runs`."""
    runs = [rounds for one in compare(store, select_cells("table2", pattern)) for rounds in one.reached]
    reached = [rounds for rounds in runs if rounds is not None]
    return f"{min(reached)} to {max(reached)} rounds in {len(reached)} of {len(runs)} runs"


def seeds(comparisons: Sequence[Comparison]) -> str:
    """Return the number of seeds by number of clients, as `W=200: 5; W=400: 1 to 3`."""
    parts = []
    for clients in sorted({one.cell.clients for one in comparisons}):
        counts = [len(one.results) for one in comparisons if one.cell.clients == clients and one.results]
        parts.append(f"W={clients}: {span(min(counts), max(counts))}")
    return "; ".join(parts)


def cells_in_words(store: Results) -> dict[str, str]:
    """Return ours and the paper's rounds of the cells that the words of the page name."""
    named = {
        "adam_all_half": "table2/mnist/fedavg-adam/all/W200/C0.5",
        "adam_all_half_even": "even/mnist/fedavg-adam/all/W200/C0.5",
        "adam_all_half_aligned": "aligned/mnist/fedavg-adam/all/W200/C0.5",
        "adam_all_even": "even/mnist/fedavg-adam/all/W200/C1.0",
        "adam_affine": "table2/mnist/fedavg-adam/affine/W200/C1.0",
        "adam_affine_400": "table2/mnist/fedavg-adam/affine/W400/C0.5",
        "adam_all": "table2/mnist/fedavg-adam/all/W200/C1.0",
        "adam_all_noisy": "table3/mnist/fedavg-adam/all/W200/C1.0",
        "fedadam_none": "table2/mnist/fedadam/none/W200/C1.0",
        "all_half": "table2/mnist/fedavg/all/W400/C0.5",
        "split_shard": "table2/mnist/fedavg/all/W400/C1.0",
        "split_even": "even/mnist/fedavg/all/W400/C1.0",
        "split_aligned": "aligned/mnist/fedavg/all/W400/C1.0",
        "even_stats": "even/mnist/fedavg/stats/W400/C0.5",
        "affine_400": "table2/mnist/fedavg/affine/W400/C1.0",
        "noisy": "table3/mnist/fedavg/affine/W200/C1.0",
        "noisy_400": "table3/mnist/fedavg/affine/W400/C1.0",
    }
    words: dict[str, str] = {}
    for key, name in named.items():
        (one,) = compare(store, select_named_cells(name))
        if key == "fedadam_none":
            words |= flatness(one)
        words |= {key: one.ours(), f"{key}_paper": str(one.cell.paper), **_by_published_code(store, key, one.cell)}
    (half,) = select_cells("tuned", "mnist/fedavg-adam/all/W200/C0.5")
    (best,) = compare(store, [choose_rates(half, store)])
    return {
        **words,
        "fedadam_collapse": differences.collapses(store, select_cells("table2", "mnist/fedadam/affine")),
        "adam_all_half_tuned": best.ours(),
        "fedadam_none_rates": _trial_like_the_papers(store, "mnist/fedadam/none/W200/C1.0"),
        **_lower_rates(store),
    }


def _trial_like_the_papers(store: Results, name: str) -> str:
    (cell,) = select_cells("table2", name)
    found = differences.rates_like_the_papers(store, cell)
    return (
        "no trial"
        if found is None
        else f"a trial with {differences.rates_text(found[0])} takes {differences.outcome(found[1])}"
    )


def _lower_rates(store: Results) -> dict[str, str]:
    """Return the rounds of FedAdam with the lowest learning rates of the grid, and the paper's."""
    named = {
        "all_half": "all/W200/C0.5",
        "all": "all/W200/C1.0",
        "affine": "affine/W200/C1.0",
        "affine_400": "affine/W400/C1.0",
    }
    words: dict[str, str] = {}
    for key, name in named.items():
        (trial,) = select_cells("tuning", f"mnist/fedadam/{name}/rate0.03-server0.003")
        result = store.read(trial, TUNING_SEED)
        words |= {f"low_{key}": differences.outcome(result), f"low_{key}_paper": str(trial.paper)}
        words |= _by_published_code(store, f"low_{key}", trial)
    return words


def _by_published_code(store: Results, key: str, cell: Cell) -> dict[str, str]:
    """Return the rounds of a cell by the published code, as it is and corrected."""
    return {
        f"{key}_{kind}": differences.published_rounds(differences.published(store, cell, corrected=corrected))
        for kind, corrected in (("published", False), ("corrected", True))
    }


def flatness(one: Comparison) -> dict[str, str]:
    """Return how far user accuracy moves from one round to the next after 0.96, and how much it grows, in the mean."""
    curves = [np.array(result.curve) for result in one.results]
    tails = [curve[int(np.argmax(curve >= 0.96)) :] for curve in curves]
    moves = np.concatenate([np.abs(np.diff(tail)) for tail in tails])
    growth = sum(float(tail[-1] - tail[0]) for tail in tails) / len(moves)
    return {"fedadam_step": f"{moves.mean():.4f}", "fedadam_growth": f"{growth:.5f}"}


def policy_orders(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return in how many groups of a strategy and a scenario the policies have the paper's order.

    Args:
        comparisons: Cells of Table 2, MNIST.

    Returns:
        The number of such groups by number of clients (`orders_200`, `orders_400`; each is of six), and the number of those in
        which private gamma and beta need the fewest rounds (`affine_first`, of `order_groups`).
    """
    groups: dict[tuple[str, int, float], dict[str, Comparison]] = {}
    for one in comparisons:
        key = (one.cell.strategy, one.cell.clients, one.cell.participation)
        groups.setdefault(key, {})[one.cell.private] = one
    agreeing = {200: 0, 400: 0}
    for (_, clients, _), found in groups.items():
        pairs = [(_infinite(one.mean_rounds), _infinite(one.cell.paper)) for one in found.values()]
        agreeing[clients] += all(
            (ours < other) == (paper < others_paper) for ours, paper in pairs for other, others_paper in pairs
        )
    first = sum(
        min(found, key=lambda name: _infinite(found[name].mean_rounds)) == "affine" for found in groups.values()
    )
    numbers = {f"orders_{clients}": count for clients, count in agreeing.items()}
    return {name: str(count) for name, count in {**numbers, "affine_first": first, "order_groups": len(groups)}.items()}


def _infinite(rounds: float | None) -> float:
    return math.inf if rounds is None else rounds


def share_of_rounds(store: Results, pattern: str, other: str) -> str:
    """Return the rounds of one cell of Table 2 as a share of those of another, in percent."""
    (one,), (base,) = (compare(store, select_cells("table2", name)) for name in (pattern, other))
    if one.mean_rounds is None or base.mean_rounds is None:
        raise ValueError(f"{pattern} or {other} does not reach the target")
    return f"{100 * one.mean_rounds / base.mean_rounds:.0f} %"


def overtaking(store: Results) -> str:
    """Return the last round in which a baseline of Fig. 5 is above MTFL(FedAvg)."""
    curves = {
        (one.cell.strategy, one.cell.private): np.mean([result.curve for result in one.results], axis=0)
        for one in compare(store, select_cells("fig5", "mnist/*/W200/C1.0"))
        if one.results
    }
    ours = curves.pop(("fedavg", "affine"))
    above = [np.flatnonzero(curves[name, "none"] > ours) for name in ("per-fedavg", "pfedme")]
    return str(max(int(one[-1]) for one in above if len(one)))


def measured(which: str) -> list[dict[str, Any]]:
    """Return the measurements of Fig. 3 or 4, one for each seed."""
    folder = RESULTS / which
    return [json.loads((folder / f"seed{seed}.json").read_bytes()) for seed in measured_seeds(folder)]


def fig4() -> dict[str, str]:
    """Return the numbers of the words on Fig. 4: rounds, seeds, user accuracy after aggregation, and the crossing."""
    files = measured("fig4")
    steps, rounds = files[0]["steps_per_round"], files[0]["rounds"]

    def by_round(policy: str) -> np.ndarray:
        curves = np.mean([one["policies"][policy]["test"] for one in files], axis=0)
        accuracies: np.ndarray = curves.reshape(rounds, steps + 1)
        return accuracies

    mtfl, fl = by_round("affine"), by_round("none")
    ahead = np.flatnonzero(mtfl.mean(axis=1) > fl.mean(axis=1))
    return {
        "fig4_rounds": str(rounds),
        "fig4_seeds": str(len(files)),
        "fig4_after": f"{100 * mtfl[-1, 0]:.1f} %",
        "fig4_end": f"{100 * mtfl[-1, -1]:.1f} %",
        "fig4_fl_after": f"{100 * fl[-1, 0]:.1f} %",
        "fig4_fl_end": f"{100 * fl[-1, -1]:.1f} %",
        "fig4_ahead": str(int(ahead[-1]) + 1) if len(ahead) else "0",
    }


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
    layers: list[dict[str, Any]] = [entry for one in measured("fig3") for entry in one["layers"]]
    rows = []
    for name in dict.fromkeys(one["layer"] for one in layers):
        here = [one for one in layers if one["layer"] == name]
        spans = (_percent_range([one[f"share_holding_{moment}"] for one in here]) for moment in ("mean", "var"))
        rows.append((name, str(len({one["round"] for one in here})), *spans))
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
