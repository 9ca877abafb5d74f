"""Tables of experiments.md and words of results.md on cells that differ from the paper's: experiments, and rates."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from scripts.reference.markdown import span, table
from studies.paper.comparison import (
    Comparison,
    compare,
    format_entry,
    format_rounds,
    format_seeds,
    slack,
)
from studies.paper.experiments import (
    RATE_GRID,
    RESTARTED,
    RESTARTS,
    SPLIT_OF,
    SPLITS,
    TABLE3_EVEN,
    TRIALS,
    TUNED_STRATEGIES,
    TUNING,
    TUNING_EVEN,
    TUNING_SEED,
    Cell,
    cells_of,
    rate_cells,
    select_cells,
    table2_rates,
)
from studies.paper.published import MAX_ROUNDS
from studies.paper.results import Result, Results
from studies.paper.tuning import choose_rates
from studies.published_code import PublishedCell

_STAR = "\\*"
_PAPER_SEEDS = 5
_OPEN = "**none**"
_BETWEEN = "**none**; the paper's rounds lie between those of two splits"
_SEEDS = "seeds"
_LOWER_TARGETS = (0.95, 0.96, 0.965)
WAYS = ("cpu", "gpu", "corrected")
"""Ways to run the published code."""


def entry(one: Comparison) -> str:
    """Format ours / the paper's rounds for a table in Markdown, with a star where they differ."""
    return format_entry(one).replace("*", _STAR).replace(" / ", " /\u00a0")


def differing(store: Results) -> list[Comparison]:
    """Return the cells of Table 2, MNIST, that differ from the paper's."""
    return [one for one in compare(store, select_cells("table2", "mnist")) if one.within is False]


def differing_table(store: Results) -> str:
    """Format the differing cells with the experiments on each."""
    rows = []
    for one in differing(store):
        tuned, near = with_other_rates(store, one.cell), rates_like_the_papers(store, one.cell)
        rows.append(
            (
                _named(one.cell),
                entry(one),
                agreeing_experiment(store, one),
                f"{accuracy_at_paper(one):.3f}" if slower(one) else "",
                published_rounds(published_like_the_papers(store, one.cell)),
                ", ".join(f"{other.cell.where} {other.ours()}" for other in other_splits(store, one)),
                "" if tuned is None else f"{rates_text(tuned.cell)}: {tuned.ours()}",
                f"{rates_text(near[0])}: {outcome(near[1])}" if near else "",
            )
        )
    headings = ("agrees", "UA then", "published code", "another split", "best rate", "nearest rate")
    return table(("cell", "ours / paper", *headings), rows)


def slower(one: Comparison) -> bool:
    """Return whether ours needs more rounds than the paper's, or never reaches a target that the paper's reaches."""
    ours, paper = one.mean_rounds, one.cell.paper
    return bool(one.results) and paper is not None and (ours is None or ours > paper)


def or_infinity(rounds: float | None) -> float:
    """Return the rounds, or infinity where the target is not reached."""
    return math.inf if rounds is None else rounds


def diverging(comparisons: Sequence[Comparison]) -> str:
    """Return the number of cells with a result whose training diverged, as `3 of 12 trials, in 2 in the first round`."""
    found = [one for one in comparisons if one.results]
    ended = [one for one in found if not one.whole]
    at_once = sum(all(seed.rounds == 0 for seed in one.results) for one in ended)
    return f"{len(ended)} of {len(found)} trials, in {at_once} in the first round"


def within_chance(one: Comparison) -> bool:
    """Return whether the seeds are too few to show a difference from the paper.

    The means of three seeds or more differ by at most two standard errors; the paper has no spread, so its five seeds are
    assumed to vary like ours. If the paper has X, some of our seeds reach the target and others do not.
    """
    reached = [rounds for rounds in one.reached if rounds is not None]
    if one.cell.paper is None:
        return 0 < len(reached) < len(one.reached)
    if len(reached) < max(3, len(one.reached)):
        return False
    error = statistics.stdev(reached) * math.sqrt(1 / len(reached) + 1 / _PAPER_SEEDS)
    return abs(statistics.fmean(reached) - one.cell.paper) <= 2 * error


def accuracy_at_paper(one: Comparison) -> float:
    """Return the mean user accuracy when the paper's run reached the target; if a run ended before, its last one."""
    at = one.cell.paper or 0
    return math.fsum(result.curve[min(at, result.rounds)] for result in one.results) / len(one.results)


def published(store: Results, cell: Cell, way: str = "cpu") -> list[PublishedCell]:
    """Return the results of a cell by the authors' published code, one for each seed.

    Args:
        store: The results.
        cell: The cell.
        way: One of WAYS: on a CPU, on a GPU or on a CPU with copies as on a GPU, or corrected.
    """
    path = store.folder / "published" / "mnist.json"
    cells = json.loads(path.read_bytes())["cells"] if path.exists() else []
    found = [PublishedCell(**one) for one in cells if one["cell"] == cell.name]
    by_seed = {one.seed: one for one in sorted(found, key=lambda one: one.device == "cuda") if _way(one) == way}
    return [by_seed[seed] for seed in sorted(by_seed)]


def published_like_the_papers(store: Results, cell: Cell) -> list[PublishedCell]:
    """Return a cell's results by the published code as on a GPU, as in its manual's examples, or else as on a CPU.

    The two differ only with FedAvg-Adam.
    """
    return published(store, cell, "gpu") or published(store, cell)


def _way(one: PublishedCell) -> str:
    if one.corrected:
        return "corrected"
    return "gpu" if one.copied or one.device == "cuda" else "cpu"


def published_table(store: Results) -> str:
    """Format the cells and trials that the published code was run on: its rounds each way, ours, the paper's."""
    cells = [*select_cells("table2", "mnist"), *select_cells("table3", "mnist"), *select_cells(TUNING, "mnist")]
    rows = []
    for cell in cells:
        texts = [published_rounds(published(store, cell, way)) for way in WAYS]
        if any(texts):
            (one,) = compare(store, [cell])
            name = f"{_named(cell)}{', noisy clients' if cell.where == 'table3' else ''}"
            rows.append((name, *texts, one.ours(), format_rounds(cell.paper)))
    return table(("cell", "published code", "as on a GPU", "corrected", "ours", "paper"), rows)


def collapses(store: Results, cells: Sequence[Cell]) -> str:
    """Return the number of cells whose user accuracy by the published code falls from above 0.9 to guessing, and the rounds."""
    found = [result for cell in cells for result in published(store, cell)]
    rounds = [at for one in found if (at := _collapse(one)) is not None]
    return f"{len(rounds)} of {len(found)} cells (round {span(min(rounds), max(rounds))})" if rounds else "no cell"


def _collapse(one: PublishedCell) -> int | None:
    learned = next((at for at, accuracy in enumerate(one.curve) if accuracy > 0.9), one.rounds)
    return next((at for at, accuracy in enumerate(one.curve) if at > learned and accuracy < 0.2), None)


def published_rounds(results: Sequence[PublishedCell]) -> str:
    """Format rounds to target, seed by seed; `>100` if 100 rounds do not reach it, X if MAX_ROUNDS rounds do not."""
    return ", ".join(map(_published_entry, results))


def _published_entry(one: PublishedCell) -> str:
    if one.rounds_to_target is not None:
        return str(one.rounds_to_target)
    return "X" if one.rounds >= MAX_ROUNDS else f">{one.rounds}"


def side(results: Sequence[PublishedCell], paper: int | None) -> int | None:
    """Return whether the published code needs more or fewer rounds than the paper.

    Args:
        results: The published code's results of a cell, by seed.
        paper: The paper's rounds; None for its X.

    Returns:
        0: the mean is within the limits of agreement, or no seed reaches a target that the paper does not reach; 1: more
        rounds; -1: fewer; None: undecided, since a run ended before.
    """
    if paper is None:
        reached = any(one.rounds_to_target is not None for one in results)
        return -1 if reached else 0 if all(one.rounds >= MAX_ROUNDS for one in results) else None
    away = statistics.fmean(one.rounds for one in results) - paper
    if away > slack(paper):
        return 1
    if any(one.rounds_to_target is None for one in results):
        return None
    return -1 if away < -slack(paper) else 0


def published_sides(store: Results) -> dict[str, str]:
    """Return the number of differing cells that the published code ran, and of each outcome.

    The outcomes: `agree` with the paper, `alike` (it differs in the direction of ours), `opposite`, `collapsed` (user accuracy
    falls to guessing), `undecided` (a run ended before).
    """
    names = [
        _published_outcome(one, results)
        for one in differing(store)
        if (results := published_like_the_papers(store, one.cell))
    ]
    counts = {name: names.count(name) for name in ("agree", "alike", "opposite", "collapsed", "undecided")}
    return {f"published_{name}": str(count) for name, count in {"count": len(names), **counts}.items()}


def _published_outcome(one: Comparison, results: Sequence[PublishedCell]) -> str:
    if any(_collapse(each) is not None for each in results):
        return "collapsed"
    where = side(results, one.cell.paper)
    if where is None:
        return "undecided"
    if where == 0:
        return "agree"
    return "alike" if slower(one) == (where > 0) else "opposite"


def zero_step_effect(store: Results) -> dict[str, str]:
    """Return the number of cells that the published code ran as on a GPU and corrected, with fewer or more rounds if corrected.

    The two ways differ only in the step on images of zeros. Seeds that reach the target in both ways count.
    """
    rounds = [
        {way: _reached(published(store, cell, way)) for way in ("gpu", "corrected")}
        for cell in select_cells("table2", "mnist")
    ]
    pairs = [
        [statistics.fmean(ways[way][seed] for seed in shared) for way in ("gpu", "corrected")]
        for ways in rounds
        if (shared := ways["gpu"].keys() & ways["corrected"].keys())
    ]
    return {
        "corrected_count": str(len(pairs)),
        "corrected_fewer": str(sum(corrected < gpu for gpu, corrected in pairs)),
        "corrected_more": str(sum(corrected > gpu for gpu, corrected in pairs)),
    }


def _reached(results: Sequence[PublishedCell]) -> dict[int, int]:
    """Return the rounds to target of the seeds that reach it."""
    return {one.seed: one.rounds_to_target for one in results if one.rounds_to_target is not None}


def with_split(store: Results, cell: Cell, split: str) -> Comparison | None:
    """Return the same cell with another split, if it is computed."""
    (one,) = compare(store, select_cells(split, cell.short_name))
    return one if one.results else None


def other_splits(store: Results, one: Comparison) -> list[Comparison]:
    """Return the same cell with each other split for which it is computed."""
    return [other for split in SPLITS if (other := with_split(store, one.cell, split)) is not None]


def agreement_on_even(store: Results, table: str = "table2") -> dict[str, str]:
    """Count the cells with 400 clients that have seeds on the split `even` too. Both splits have the same seeds here.

    Args:
        store: The folder of results.
        table: `table2` or `table3`.

    Returns:
        `even_cells`: the cells. `even_agree` and `even_shard_agree`: cells that agree with the paper on each split.
        `even_reach` and `even_shard_reach`: cells whose seeds all reach the target. The names of `table3` begin with
        `noisy_`.
    """
    split, prefix = {"table2": ("even", ""), "table3": (TABLE3_EVEN, "noisy_")}[table]
    pairs = [
        (_with_seeds_of(one, even), _with_seeds_of(even, one))
        for one in compare(store, select_cells(table, "mnist/*/W400"))
        if one.cell.compared and (even := with_split(store, one.cell, split)) is not None
    ]
    counts = {"even_cells": len(pairs)}
    for name, ones in (("even_shard", [one for one, _ in pairs]), ("even", [even for _, even in pairs])):
        counts[f"{name}_agree"] = sum(one.within is True for one in ones)
        counts[f"{name}_reach"] = sum(one.mean_rounds is not None for one in ones)
    return {f"{prefix}{name}": str(number) for name, number in counts.items()}


def _with_seeds_of(one: Comparison, other: Comparison) -> Comparison:
    seeds = {result.study.seed for result in other.results}
    return replace(one, results=tuple(result for result in one.results if result.study.seed in seeds))


def splits_table(store: Results) -> str:
    """Format the cells that are computed with another split, beside the published code's split."""
    rows = []
    for cell in select_cells("table2", "mnist"):
        others = [with_split(store, cell, split) for split in reversed(SPLITS)]
        if any(others):
            (here,) = compare(store, [cell])
            texts = ("" if one is None else _rounds(one) for one in (here, *others))
            rows.append((_named(cell), *texts, format_rounds(cell.paper)))
    return table(("cell", "`shard`", *(f"`{split}`" for split in reversed(SPLITS)), "paper"), rows)


def lower_targets(store: Results) -> str:
    """Format the rounds to lower targets of the cells without private values: the mean and the range of the seeds."""
    rows = []
    for one in compare(store, select_cells("table2", "mnist/*/none")):
        texts = (format_seeds([_first(result, target) for result in one.results]) for target in _LOWER_TARGETS)
        rows.append((_named(one.cell), *texts, one.ours(), format_rounds(one.cell.paper)))
    return table(("cell", *(f"UA {target}" for target in _LOWER_TARGETS), "UA 0.97", "paper, 0.97"), rows)


def rounds_to_lower_targets(store: Results, name: str) -> str:
    """Return the rounds of a cell of Table 2 to lower targets: the mean and the range of the seeds."""
    (one,) = compare(store, select_cells("table2", name))
    texts = (
        f"{format_seeds([_first(result, target) for result in one.results])} to {target}" for target in _LOWER_TARGETS
    )
    return ", ".join(texts)


def _first(result: Result, target: float) -> int | None:
    return next((at for at, accuracy in enumerate(result.curve) if accuracy >= target), None)


def trials(store: Results, cell: Cell, where: str = TUNING) -> list[tuple[Cell, Result]]:
    """Return the finished trials of a cell's grid of learning rates, on the split of `where`, one of TRIALS."""
    grid = (replace(one, where=where) for one in rate_cells(replace(cell, where="tuned")))
    found = [(one, store.read(one, TUNING_SEED)) for one in grid]
    return [(one, result) for one, result in found if result is not None]


def rates_like_the_papers(store: Results, cell: Cell) -> tuple[Cell, Result] | None:
    """Return the trial whose rounds are nearest to the paper's, if they are within the limits of agreement.

    A trial with the cell's own rates does not count, and a trial with the split `even` only if no other agrees.
    """
    if cell.strategy not in TUNED_STRATEGIES or cell.paper is None:
        return None
    paper, own = cell.paper, table2_rates(cell)
    for where in TRIALS:
        away = [
            (abs(result.rounds_to_target - paper), place, one, result)
            for place, (one, result) in enumerate(trials(store, cell, where))
            if result.rounds_to_target is not None and (where != TUNING or one.rates != own)
        ]
        if away and min(away)[0] <= slack(paper):
            return min(away)[2:]
    return None


def server_rate_agreements(store: Results) -> str:
    """Return the number of cells in which a trial of FedAdam on MNIST agrees with the paper, by the server's rate.

    Args:
        store: The results.

    Returns:
        Text such as `11 of 13 with 0.003, 5 of 13 with 0.01`.
    """
    found: dict[float | None, list[bool]] = {server: [] for _, server in RATE_GRID["fedadam"]}
    for cell in select_cells("tuned", "mnist/fedadam"):
        agreeing: dict[float | None, bool] = {}
        for one, result in trials(store, cell):
            server = one.rates[1] if one.rates else None
            agreeing[server] = agreeing.get(server, False) or Comparison(one, (result,)).within is True
        for server, agrees in agreeing.items():
            found[server].append(agrees)
    return ", ".join(f"{sum(cells)} of {len(cells)} with {server:g}" for server, cells in found.items() if cells)


def restarted(store: Results, cell: Cell, where: str) -> list[Comparison]:
    """Return the computed cells with the setting of a cell and a count of steps that restarts, one for each rate.

    Args:
        store: The results.
        cell: A cell of Table 2.
        where: One of RESTARTS.
    """
    found = compare(store, [one for one in cells_of(where) if one.short_name.startswith(f"{cell.short_name}/")])
    return [one for one in found if one.results]


def restarted_agreements(store: Results) -> str:
    """Format the number of MNIST cells that agree with the paper if Adam's count of steps restarts, and if not, by the rate.

    A cell without a restart is its trial with the same rate.
    """
    found: dict[str, list[tuple[bool, bool]]] = {}
    for cell in select_cells("table2", "mnist/fedavg-adam"):
        without = {one.rates: Comparison(one, (result,)).within for one, result in trials(store, cell)}
        for one in restarted(store, cell, RESTARTED):
            if one.cell.rates in without:
                agreeing = (one.within is True, without[one.cell.rates] is True)
                found.setdefault(rates_text(one.cell), []).append(agreeing)
    rows = [
        (rate, str(len(cells)), str(sum(restarts for restarts, _ in cells)), str(sum(goes_on for _, goes_on in cells)))
        for rate, cells in sorted(found.items())
    ]
    return table(("rate", "cells", "agree with a restart", "agree without one"), rows)


def restarted_table(store: Results) -> str:
    """Format the cells of FedAvg-Adam with a count of steps that restarts, beside Table 2's and the paper's."""
    columns = {(one.where, one.rates): rates_text(one) for where in RESTARTS for one in cells_of(where)}
    rows = []
    for cell in select_cells("table2", "mnist/fedavg-adam"):
        by_rates = {
            (one.cell.where, one.cell.rates): one for where in RESTARTS for one in restarted(store, cell, where)
        }
        if by_rates:
            (here,) = compare(store, [cell])
            texts = [_rounds(by_rates[key]) if key in by_rates else "" for key in columns]
            rows.append((_named(cell), _rounds(here), *texts, format_rounds(cell.paper)))
    return table(("cell", "count goes on, 0.003", *columns.values(), "paper"), rows)


def _rounds(one: Comparison) -> str:
    return f"{one.ours()}{_STAR if one.within is False else ''}"


def with_best_rates(store: Results, cell: Cell) -> Comparison:
    """Return a cell of Table 2 with the best learning rates of the grid."""
    (tuned,) = select_cells("tuned", cell.short_name)
    (one,) = compare(store, [choose_rates(tuned, store)])
    return one


def effects_of_tuning(store: Results, tuned: Sequence[Comparison], untuned: Sequence[Comparison]) -> dict[str, str]:
    """Return counts of the cells with tuned rates.

    Args:
        store: The folder with the trials.
        tuned: Cells with the best rates of the grid.
        untuned: The same cells of Table 2, in this order.

    Returns:
        `tuned_own`: cells whose best rates are those of Table 2. `tuned_unreached`: cells that no trial's rates bring to
        the target. `tuned_worse`: cells that need more rounds with the best rates than with the rates of Table 2, or do
        not reach the target with each seed.
    """
    pairs = [(one.mean_rounds, own.mean_rounds) for one, own in zip(tuned, untuned, strict=True) if one.results]
    unreached = [
        one for one in untuned if all(result.rounds_to_target is None for _, result in trials(store, one.cell))
    ]
    return {
        "tuned_own": str(sum(one == own for one, own in zip(tuned, untuned, strict=True))),
        "tuned_unreached": str(len(unreached)),
        "tuned_worse": str(sum(own is not None and (rounds is None or rounds > own) for rounds, own in pairs)),
    }


def with_other_rates(store: Results, cell: Cell) -> Comparison | None:
    """Return a cell of Table 2 with the best learning rates of the grid, if these are not its own and it is computed."""
    if cell.strategy not in TUNED_STRATEGIES:
        return None
    one = with_best_rates(store, cell)
    return one if one.results and one.cell.where == "tuned" else None


Experiment = tuple[str, str, Callable[[Results, Comparison], bool]]
"""Its name, its description, and whether it agrees with the paper on a cell that differs."""


def agreeing_experiment(store: Results, one: Comparison) -> str:
    """Return the first experiment on a differing cell that agrees with the paper; `seeds` or a name in bold: none agrees."""
    return next(name for name, _, agrees in EXPERIMENTS if agrees(store, one))


def agreements(store: Results) -> dict[str, str]:
    """Return the number of differing cells, how many have an experiment that agrees, and a table by experiment."""
    names: dict[str, list[str]] = {name: [] for name, _, _ in EXPERIMENTS}
    for one in differing(store):
        names[agreeing_experiment(store, one)].append(_named(one.cell))
    rows = [(text, str(len(names[name])), "; ".join(names[name])) for name, text, _ in EXPERIMENTS if names[name]]
    total = sum(map(len, names.values()))
    return {
        "differing_count": str(total),
        "agreeing_count": str(total - sum(len(names[name]) for name in (_SEEDS, _BETWEEN, _OPEN))),
        "agreements": table(("experiment that agrees with the paper", "cells", ""), rows),
    }


def _published_agrees(store: Results, cell: Cell) -> bool:
    found = published_like_the_papers(store, cell)
    return bool(found) and side(found, cell.paper) == 0


def _near_trial(store: Results, cell: Cell) -> str:
    """Return the table of the trial that takes as many rounds as the paper; "" if there is no such trial."""
    found = rates_like_the_papers(store, cell)
    return "" if found is None else found[0].where


def _restart_agrees(store: Results, one: Comparison) -> bool:
    return any(other.within for where in RESTARTS for other in restarted(store, one.cell, where))


def _between_splits(store: Results, one: Comparison) -> bool:
    """Return whether the paper's rounds lie between those of two splits; a split that never reaches the target counts."""
    rounds = [or_infinity(each.mean_rounds) for each in (one, *other_splits(store, one))]
    return len(rounds) > 1 and one.cell.paper is not None and min(rounds) <= one.cell.paper <= max(rounds)


EXPERIMENTS: Sequence[Experiment] = (
    (
        "best rate",
        "the learning rate of the grid with the fewest rounds",
        lambda store, one: (tuned := with_other_rates(store, one.cell)) is not None and tuned.within is True,
    ),
    (
        "published code",
        "the published code, mostly one seed; FedAvg-Adam as on a GPU",
        lambda store, one: _published_agrees(store, one.cell),
    ),
    (
        "split",
        "another split of the test data, mostly one seed",
        lambda store, one: any(other.within for other in other_splits(store, one)),
    ),
    (
        "another rate",
        "another learning rate of the grid, one seed",
        lambda store, one: _near_trial(store, one.cell) == TUNING,
    ),
    (
        "another rate, split `even`",
        "another learning rate of the grid on another split, one seed",
        lambda store, one: _near_trial(store, one.cell) == TUNING_EVEN,
    ),
    (
        "restarted",
        "a count of Adam's steps that restarts in each round, with a learning rate of the grid, on one of two splits",
        _restart_agrees,
    ),
    (
        _SEEDS,
        "**none**; with so few seeds a difference is not shown (two standard errors), or some seeds reach the target and "
        "others do not, where the paper has X",
        lambda _, one: within_chance(one),
    ),
    (_BETWEEN, _BETWEEN, _between_splits),
    (_OPEN, _OPEN, lambda *_: True),
)
"""The experiments in the order in which a cell is counted."""


def grids(store: Results) -> str:
    """Format the trials of learning rates: a row for each cell and rate of the clients, a column for each server rate."""
    parts = []
    for where in TRIALS:
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells_of("tuned"):
            if trials(store, cell, where):
                groups.setdefault((cell.task, cell.strategy), []).append(cell)
        parts += [_grid(store, *names, cells, where) for names, cells in groups.items()]
    return "\n".join(parts) if parts else "No rate is tried yet.\n"


def _grid(store: Results, task: str, strategy: str, cells: Sequence[Cell], where: str) -> str:
    rates = RATE_GRID[strategy]
    title = ", ".join([task, strategy, *([f"split {SPLIT_OF[where]}"] if where in SPLIT_OF else [])])
    outcomes = {(cell, one.rates): outcome(result) for cell in cells for one, result in trials(store, cell, where)}
    if rates[0][1] is None:
        rows = [
            (_named(cell), *(outcomes.get((cell, one), "-") for one in rates), format_rounds(cell.paper))
            for cell in cells
        ]
        return table((title, *(f"{rate:g}" for rate, _ in rates), "paper"), rows)
    servers = list(dict.fromkeys(server for _, server in rates))
    rows = [
        (
            _named(cell),
            f"{client:g}",
            *(outcomes.get((cell, (client, one)), "-") for one in servers),
            format_rounds(cell.paper),
        )
        for cell in cells
        for client in sorted({of[0] for own, of in outcomes if own == cell and of is not None})
    ]
    return table((title, "clients", *(f"server {server:g}" for server in servers), "paper"), rows)


def outcome(result: Result | None) -> str:
    """Format rounds to target; for a trial that ended before, X and the best user accuracy; - if there is no result.

    `div.` if training diverged.
    """
    if result is None:
        return "-"
    if result.diverged is not None:
        return "div."
    if result.rounds_to_target is None:
        return f"X ({math.floor(1000 * max(result.curve)) / 1000:.3f})"  # rounded down: below the target
    return format_rounds(result.rounds_to_target)


def _named(cell: Cell) -> str:
    """Return the name without the task, with spaces instead of slashes, so that lines can break there."""
    return cell.short_name.removeprefix(f"{cell.task}/").replace("/", " ")


def rates_text(cell: Cell) -> str:
    """Format the learning rates of a trial, and its split if that is not the published one."""
    client, server = cell.rates or (0.0, None)
    split = f"{SPLIT_OF[cell.where]}, " if cell.where in SPLIT_OF else ""
    return split + (f"{client:g}" if server is None else f"{client:g}, server {server:g}")
