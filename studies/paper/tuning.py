"""Learning rates of the table `tuned`: each rate of a grid is tried with one seed, and the cell takes the best.

Where the rates of Table 2 are the best, the cell of Table 2 and its results are used.

The paper tunes the rates of every cell "such that the target was reached in the fewest rounds" (section 4.2) and does not
publish them. The results of the trials have the form of a cell's results, with TUNING_SEED, below `tuning/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from studies.paper.experiments import TUNING_SEED, Cell, in_order, rate_cells, table2_rates
from studies.paper.results import Result, ResultOrigin, Results
from studies.paper.runner import Sum, run_paper


def choose_rates(cell: Cell, results: Results) -> Cell:
    """Return the cell with the best learning rates among the finished trials: Table 2's, if it has these rates.

    The best rates reach the target in the fewest rounds. If no rates reach it, the best have the highest user accuracy.
    Rates with which training diverges are not chosen.

    Args:
        cell: A cell of the table `tuned`.
        results: The folder with the trials.

    Returns:
        `cell` with `rates`, or the cell of Table 2 with the same rates; `cell` itself if no trial finished without
        diverging.
    """
    trials = [(one, results.read(one, TUNING_SEED)) for one in rate_cells(cell)]
    finished = [(one, result) for one, result in trials if result is not None and result.diverged is None]
    if not finished:
        return cell
    best = min(finished, key=lambda trial: _rank(trial[1]))[0].rates
    return replace(cell, where="table2") if best == table2_rates(cell) else replace(cell, rates=best)


def _rank(result: Result) -> tuple[bool, float]:
    if result.rounds_to_target is None:
        return True, -max(result.curve)
    return False, result.rounds_to_target


def run_tuned(cells: Sequence[Cell], seeds: Sequence[int], results: Results, origin: ResultOrigin, **hooks: Any) -> Sum:
    """Compute the cells with `seeds`, each after the trials of its learning rates.

    Args:
        cells: Cells of the table `tuned`.
        seeds: Seeds to report; TUNING_SEED is not one of them.
        results: The folder of results; finished ones are kept.
        origin: Processes and device to compute with; each result names it.
        hooks: `watcher`, `stopped` and `simulate` of `run_paper`.

    Returns:
        The number of cells and seeds by outcome; the trials are counted as well.
    """

    def play(some: Sequence[Cell], by: Sequence[int]) -> Sum:
        return run_paper(some, by, results, origin, **hooks)

    total = Sum(0, 0)
    for cell, _ in in_order(cells, (TUNING_SEED,)):
        done = play(rate_cells(cell), (TUNING_SEED,))
        chosen = choose_rates(cell, results)
        # If another process computes trials, that process also computes the cell.
        if chosen != cell and not (done.interrupted or done.elsewhere):
            done += play((chosen,), seeds)
        total += done
        if done.interrupted:
            break
    return total
