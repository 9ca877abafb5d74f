"""The page results.md: the paper's tables and figures computed again, from the files below results/."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.support.json_lines import JsonLines, Record
from scripts.reference.markdown import render, span, table
from studies.pages import RESULTS, TEMPLATES, differences, machines, testbed
from studies.pages.differences import or_infinity
from studies.paper.comparison import Comparison, compare, count, format_rounds, tables
from studies.paper.experiments import (
    TABLE3_EVEN,
    select_cells,
)
from studies.paper.results import Results, measurements
from studies.paper.tuning import choose_rates

_LOW_RATES = "rate0.03-server0.003"
_PUBLISHED_RATES = "rate0.3-server0.01"
_POLICIES = ("none", "stats", "affine", "all")
_TERMS = ("task", "strategy", "private", "clients", "participation", "learning_rate", "seed")
"""The terms that distinguish outcomes of `fedpatch simulate`."""
_STRATEGIES = {"fedavg": "FedAvg", "fedadam": "FedAdam", "fedavg-adam": "FedAvg-Adam"}
# Classes of docs/examples/adam_constants.py.
_CONSTANTS = {
    "ShortVariance": "beta_2 = 0.99",
    "ShorterVariance": "beta_2 = 0.9",
    "ShortMean": "beta_1 = 0.5",
    "LargeEpsilon": "epsilon = 1e-3",
}


def page() -> str:
    """Return the page."""
    store = Results(RESULTS)
    mnist = compare(store, select_cells("table2", "mnist"))
    untuned = select_from(mnist, "fedadam", "fedavg-adam")
    tuned = [differences.with_best_rates(store, one.cell) for one in untuned]
    cifar10 = compare(store, select_cells("table2", "cifar10"))
    noisy = compare(store, select_cells("table3", "mnist/*/none,mnist/*/all,mnist/*/affine"))
    noisy_cifar10 = compare(store, select_cells("table3", "cifar10"))
    private_stats = compare(store, select_cells("table2", "mnist/*/all/W400,mnist/*/stats/W400"))
    return render(
        TEMPLATES / "results.md",
        lambda kind, name: cell_words(store, kind, name),
        table2_mnist=grid(mnist),
        table2_mnist_count=str(count(mnist)),
        table2_mnist_seeds=seeds(mnist),
        table2_mnist_hours=f"{sum(run.seconds for one in mnist for run in one.results) / 3600:.0f}",
        table2_mnist_on_gpu=on_gpu(mnist),
        tuned=grid(tuned),
        tuned_count=str(count(tuned)),
        tuned_seeds=seeds(tuned),
        untuned_agree=agreement(untuned),
        **differences.effects_of_tuning(store, tuned, untuned),
        table2_cifar10=grid(cifar10),
        table2_cifar10_seeds=seeds(cifar10),
        cifar10_on_gpu=on_gpu(cifar10),
        cifar10_count=str(count(cifar10)),
        cifar10_fedavg=agreement(select_from(cifar10, "fedavg")),
        cifar10_adam=agreement(select_from(cifar10, "fedavg-adam")),
        cifar10_adam_slower=str(sum(map(differences.slower, select_from(cifar10, "fedavg-adam")))),
        cifar10_fedadam_private=agreement(select_from(cifar10, "fedadam", private=("all", "affine"))),
        cifar10_fedadam_other=agreement(select_from(cifar10, "fedadam", private=("none", "stats"))),
        cifar10_diverged=differences.diverging(
            compare(store, select_cells("tuning", f"cifar10/fedadam/*/{_PUBLISHED_RATES}"))
        ),
        table3_mnist=grid(noisy),
        table3_mnist_count=str(count(noisy)),
        table3_mnist_seeds=seeds(noisy),
        table3_cifar10=grid(noisy_cifar10),
        table3_cifar10_count=str(count(noisy_cifar10)),
        table3_cifar10_seeds=seeds(noisy_cifar10),
        table3_cifar10_private=agreement(select_from(noisy_cifar10, *_STRATEGIES, private=("all", "affine"))),
        noisy_cifar10_on_gpu=on_gpu(noisy_cifar10),
        **policy_orders(mnist),
        mixed=str(sum(None in one.reached and set(one.reached) != {None} for one in mnist)),
        private_stats=agreement(private_stats),
        private_stats_slower=str(sum(differences.slower(one) and one.within is False for one in private_stats)),
        low_rates=agreement(compare(store, select_cells("tuning", f"mnist/fedadam/*/{_LOW_RATES}"))),
        server_rates=differences.server_rate_agreements(store),
        restarted_agreements=differences.restarted_agreements(store),
        fewer_sgd=fewer_rounds(select_from(noisy, "fedavg", "fedadam")),
        fewer_adam=fewer_rounds(select_from(noisy, "fedavg-adam")),
        fedadam_none_slower=str(sum(map(differences.slower, select_from(mnist, "fedadam", private=("none",))))),
        lower_targets=differences.rounds_to_lower_targets(store, "mnist/fedadam/none/W200/C1.0"),
        **flatness(store, "mnist/fedadam/none/W200/C1.0"),
        fedadam_collapse=differences.collapses(
            store, select_cells("table2", "mnist/fedadam/affine,mnist/fedadam/none")
        ),
        origins=machines.origins(store),
        mtfl=rounds_range(store, "mnist/fedavg-adam/affine"),
        fl=rounds_range(store, "mnist/fedavg/none"),
        fig5=fig5(store),
        **overtaking(store),
        equation_10=equation_10(),
        **testbed.table4(RESULTS / "testbed.jsonl"),
        demo_task=demo_task(),
        adam_constants=adam_constants(),
        fedavg_low_rate="".join(map(_rounds_of, outcomes("fedavg-rate"))),
        all_share=share_of_rounds(store, "mnist/fedavg/all/W200/C1.0", "mnist/fedavg/none/W200/C1.0"),
        **fig3(),
        **fig4(),
        **machines.spread(store),
        **machines.order_of_sums(store),
        **differences.agreements(store),
        **differences.published_sides(store),
        **differences.zero_step_effect(store),
        **differences.agreement_on_even(store),
        **differences.agreement_on_even(store, "table3"),
        noisy_even=grid(compare(store, select_cells(TABLE3_EVEN, "mnist/*/W400"))),
    )


def experiments() -> str:
    """Return the page of the experiments on cells that differ from the paper's."""
    store = Results(RESULTS)
    return render(
        TEMPLATES / "experiments.md",
        differing=differences.differing_table(store),
        published=differences.published_table(store),
        fedadam_collapse=differences.collapses(
            store, select_cells("table2", "mnist/fedadam/affine,mnist/fedadam/none")
        ),
        splits=differences.splits_table(store),
        lower_targets=differences.lower_targets(store),
        restarted=differences.restarted_table(store),
        grids=differences.grids(store),
    )


def cell_words(store: Results, kind: str, name: str) -> str:
    """Return the rounds of a cell.

    Args:
        store: The results.
        kind: `ours`, `paper`, or by the published code: `published`, `gpu` (as on a GPU), `corrected` (without two of its
            effects).
        name: Name of the cell, or of a trial of learning rates.

    Returns:
        Rounds to target, by seed or in the mean.

    Raises:
        UsageError: No cell, or more than one, has this name.
        KeyError: There is no such kind.
        ValueError: The published code was not run on the cell.
    """
    where, _, short_name = name.partition("/")
    (cell,) = select_cells(where, short_name)
    (one,) = compare(store, [choose_rates(cell, store) if where == "tuned" else cell])
    texts: dict[str, Callable[[], str]] = {
        "ours": one.ours,
        "paper": lambda: format_rounds(cell.paper),
        "published": lambda: differences.published_rounds(differences.published(store, cell)),
        "gpu": lambda: differences.published_rounds(differences.published(store, cell, "gpu")),
        "corrected": lambda: differences.published_rounds(differences.published(store, cell, "corrected")),
    }
    text = texts[kind]()
    if not text:
        raise ValueError(f"{name}: the published code has no result of this cell ({kind})")
    return text


def select_from(
    comparisons: Iterable[Comparison], *strategies: str, private: Sequence[str] = _POLICIES
) -> list[Comparison]:
    """Return the comparisons of some strategies and policies."""
    return [one for one in comparisons if one.cell.strategy in strategies and one.cell.private in private]


def agreement(comparisons: Sequence[Comparison]) -> str:
    """Return the number of cells with a result that agree with the paper, as `3 of 12`."""
    found = computed(comparisons)
    return f"{sum(one.within is True for one in found)} of {len(found)}"


def on_gpu(comparisons: Sequence[Comparison]) -> str:
    """Return the number of cells with a result that was computed on a GPU."""
    return str(sum(any(result.device == "cuda" for result in one.results) for one in comparisons))


def fewer_rounds(comparisons: Sequence[Comparison]) -> str:
    """Return the number of cells that differ from the paper since ours needs fewer rounds, as `9 of 10` that differ."""
    differing = [one for one in comparisons if one.within is False]
    pairs = [(or_infinity(one.mean_rounds), or_infinity(one.cell.paper)) for one in differing]
    return f"{sum(ours < paper for ours, paper in pairs)} of {len(pairs)}"


def computed(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons that have a result."""
    return [one for one in comparisons if one.results]


def grid(comparisons: Sequence[Comparison]) -> str:
    """Format a table of the paper: ours / the paper's rounds, a row for each strategy and policy."""
    cells = computed(comparisons)
    if not cells:
        return "No cell is computed yet.\n"
    (found,) = tables(cells)
    names = len(found.rows[0].names)
    rows = [
        (" ".join(row.names), *("" if one is None else differences.entry(one) for one in row.entries))
        for row in found.rows
    ]
    return table((", ".join(found.headings[:names]), *found.headings[names:]), rows)


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


def flatness(store: Results, name: str) -> dict[str, str]:
    """Return the mean change and the mean growth of user accuracy per round after 0.96, for a cell of Table 2."""
    (one,) = compare(store, select_cells("table2", name))
    curves = [np.array(result.curve) for result in one.results]
    tails = [curve[int(np.argmax(curve >= 0.96)) :] for curve in curves]
    moves = np.concatenate([np.abs(np.diff(tail)) for tail in tails])
    growth = sum(float(tail[-1] - tail[0]) for tail in tails) / len(moves)
    return {"flat_step": f"{moves.mean():.4f}", "flat_growth": f"{growth:.5f}"}


def policy_orders(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return the number of groups (a strategy and a scenario) whose policies have the paper's order.

    Args:
        comparisons: Cells of Table 2, MNIST.

    Returns:
        The number of such groups by number of clients (`orders_200`, `orders_400`; each of six), and the number of groups in
        which private gamma and beta need the fewest rounds (`affine_first`, of `order_groups`).
    """
    groups: dict[tuple[str, int, float], dict[str, Comparison]] = {}
    for one in comparisons:
        key = (one.cell.strategy, one.cell.clients, one.cell.participation)
        groups.setdefault(key, {})[one.cell.private] = one
    agreeing = {200: 0, 400: 0}
    for (_, clients, _), found in groups.items():
        pairs = [(or_infinity(one.mean_rounds), or_infinity(one.cell.paper)) for one in found.values()]
        agreeing[clients] += all(
            (ours < other) == (paper < others_paper) for ours, paper in pairs for other, others_paper in pairs
        )
    first = sum(
        min(found, key=lambda name: or_infinity(found[name].mean_rounds)) == "affine" for found in groups.values()
    )
    numbers = {f"orders_{clients}": count for clients, count in agreeing.items()}
    return {name: str(count) for name, count in {**numbers, "affine_first": first, "order_groups": len(groups)}.items()}


def share_of_rounds(store: Results, pattern: str, other: str) -> str:
    """Return the rounds of one cell of Table 2 as a share of those of another, in percent."""
    (one,), (base,) = (compare(store, select_cells("table2", name)) for name in (pattern, other))
    if one.mean_rounds is None or base.mean_rounds is None:
        raise ValueError(f"{pattern} or {other} does not reach the target")
    return f"{100 * one.mean_rounds / base.mean_rounds:.0f} %"


def overtaking(store: Results) -> dict[str, str]:
    """Return the last round in which each baseline of Fig. 5 is above MTFL(FedAvg), and the number of seeds."""
    found = computed(compare(store, select_cells("fig5", "mnist/*/W200/C1.0")))
    curves = {
        (one.cell.strategy, one.cell.private): np.mean([result.curve for result in one.whole], axis=0)
        for one in found
        if one.whole
    }
    ours = curves[("fedavg", "affine")]
    last = {name: np.flatnonzero(curves[name, "none"] > ours) for name in ("per-fedavg", "pfedme")}
    numbers = {f"{name.replace('-', '')}_above": str(int(above[-1])) for name, above in last.items() if len(above)}
    counts = [len(one.results) for one in found]
    return {**numbers, "fig5_seeds": span(min(counts), max(counts))}


def measured(which: str) -> list[dict[str, Any]]:
    """Return the measurements of Fig. 3 or 4, one for each seed."""
    return sorted(measurements(RESULTS, which).records(), key=lambda one: int(one["seed"]))


def fig3() -> dict[str, str]:
    """Return the numbers for the text on Fig. 3: seeds, and the mean drop of user accuracy at an aggregation."""
    files = measured("fig3")

    def drop(kind: str) -> float:
        """Return the mean drop. A round has user accuracy after aggregation, and then after each step."""
        curves = np.array([one[kind] for one in files])
        steps = files[0]["steps_per_round"]
        return float((curves[:, steps :: steps + 1][:, :-1] - curves[:, steps + 1 :: steps + 1]).mean())

    return {"fig3_seeds": str(len(files)), "fig3_drop": f"{drop('mtfl'):.2f}", "fig3_drop_fl": f"{drop('fl'):.2f}"}


def fig4() -> dict[str, str]:
    """Return the numbers for the text on Fig. 4: rounds, seeds, user accuracy after aggregation, and differences in points."""
    files = measured("fig4")
    steps, rounds = files[0]["steps_per_round"], files[0]["rounds"]

    def by_round(policy: str) -> np.ndarray:
        curves = np.mean([one["policies"][policy]["test"] for one in files], axis=0)
        accuracies: np.ndarray = curves.reshape(rounds, steps + 1)
        return accuracies

    mtfl, fl = by_round("affine"), by_round("none")
    points = 100 * (mtfl - fl)
    lead = points.mean(axis=1)
    ahead = np.flatnonzero(lead > 0)
    later = np.flatnonzero(mtfl.argmax(axis=1))
    return {
        "fig4_rounds": str(rounds),
        "fig4_seeds": str(len(files)),
        "fig4_turn": str(int(later[-1]) + 2 if len(later) else 1),
        "fig4_after": f"{100 * mtfl[-1, 0]:.1f} %",
        "fig4_end": f"{100 * mtfl[-1, -1]:.1f} %",
        "fig4_fl_after": f"{100 * fl[-1, 0]:.1f} %",
        "fig4_fl_end": f"{100 * fl[-1, -1]:.1f} %",
        "fig4_ahead": str(int(ahead[-1]) + 1) if len(ahead) else "0",
        "fig4_lead_round_5": f"{points[4, 0]:.1f}",
        "fig4_lead_after": f"{points[:, 0].max():.1f}",
        "fig4_lead_after_end": f"{points[-1, 0]:.1f}",
        "fig4_lead": f"{lead.max():.1f}",
        "fig4_lead_round": str(int(lead.argmax()) + 1),
        "fig4_behind": f"{-lead[-1]:.1f}",
        "fig4_stats_cost": f"{100 * (fl[-1] - by_round('stats')[-1]).mean():.1f}",
        "fig4_all_cost": f"{100 * (mtfl[-1] - by_round('all')[-1]).mean():.1f}",
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
        by_policy = {one["study"]["private"]: one for one in outcomes("demo-task", strategy)}
        rows.append((name, *(_demo_entry(by_policy[policy]) for policy in _POLICIES)))
    return table(("completed rounds when UA is first 0.97 (of 60)", *(f"`{one}`" for one in _POLICIES)), rows)


def adam_constants() -> str:
    """Return the rounds of an open cell with other constants of Adam, seed by seed, as `beta_2 = 0.9: 28, 24`."""
    texts = []
    for name, words in _CONSTANTS.items():
        rounds = map(_rounds_of, outcomes("adam-constants", f"adam_constants:{name}"))
        texts.append(f"{words}: {', '.join(rounds)}")
    return "; ".join(texts)


def outcomes(name: str, strategy: str | None = None) -> list[Record]:
    """Return the outcomes that `fedpatch simulate --json` printed into results/NAME.jsonl, seed by seed.

    Args:
        name: Name of the file.
        strategy: Name of the strategy; None: all outcomes.
    """
    table = JsonLines(RESULTS / f"{name}.jsonl", lambda one: tuple(one["study"][term] for term in _TERMS))
    found = [one for one in table.records() if strategy in (None, one["study"]["strategy"])]
    return sorted(found, key=lambda one: int(one["study"]["seed"]))


def _rounds_of(outcome: Record) -> str:
    return format_rounds(outcome["rounds_to_target"])


def _demo_entry(outcome: dict[str, Any]) -> str:
    reached = outcome["rounds_to_target"]
    return str(reached) if reached is not None else f"X (best UA {max(outcome['curve']):.3f})"
