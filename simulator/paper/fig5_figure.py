"""Fig. 5 of the paper: user accuracy per round of four algorithms, a panel per data set, W and C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.figures import BLUE, GREEN, ORANGE, PINK, drawing, legend_above, mean_and_confidence, save
from simulator.paper_tables import SCENARIOS, TARGET_UA
from simulator.summary import Comparison, datasets

_LINES = {
    ("fedavg", "none"): ("FL(FedAvg)", ORANGE, "-"),
    ("fedavg", "affine"): ("MTFL(FedAvg), private γ, β", BLUE, "-"),
    ("pfedme", "none"): ("pFedMe", GREEN, "--"),
    ("per-fedavg", "none"): ("Per-FedAvg", PINK, "-."),
}
_LOWEST_PERCENT = {"mnist": 80.0, "cifar10": 30.0}  # what lies below is over within a few rounds


def draw_fig5(comparisons: Sequence[Comparison], stem: Path) -> list[Path]:
    """Draw what there is of Fig. 5: the mean over the seeds, and its 95 % confidence interval where there are several.

    Returns the paths of the PNG and the SVG.
    """
    tasks = [task for task in TARGET_UA if any(one.cell.task == task and one.results for one in comparisons)]
    rows = max(1, len(tasks))
    size = {"width_in": 11.0, "height_in": 0.6 + 2.5 * rows}
    with drawing(rows, len(SCENARIOS), **size, sharex=True, sharey="row") as (figure, panels):
        lines: dict[str, Any] = {}
        for row, task in zip(panels, tasks, strict=False):
            here = [one for one in comparisons if one.cell.task == task]
            lines |= _draw_row(row, here)
            row[0].set_ylabel(f"{datasets(here)}\nuser accuracy (%)")
            row[0].set_ylim(_LOWEST_PERCENT[task], _highest_percent(here) + 1.0)
        for panel in panels[-1]:
            panel.set_xlabel("round")
        legend_above(figure, {label: lines[label] for label, _, _ in _LINES.values() if label in lines})
        return save(figure, stem)


def _draw_row(row: Sequence[Any], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Returns the lines by label."""
    lines: dict[str, Any] = {}
    for panel, (clients, participation) in zip(row, SCENARIOS, strict=True):
        setting = (clients, participation)
        finished = [one for one in comparisons if one.results and (one.cell.clients, one.cell.participation) == setting]
        for one in finished:
            lines |= _draw_curve(panel, one)
        panel.set_title(f"W = {clients}, C = {participation}", fontsize=9)
        panel.margins(x=0)
        if not finished:
            panel.text(0.5, 0.5, "not computed yet", transform=panel.transAxes, ha="center", color="#767676")
    return lines


def _draw_curve(panel: Any, one: Comparison) -> dict[str, Any]:
    label, colour, dashes = _LINES[one.cell.strategy, one.cell.private]
    mean, half = mean_and_confidence([result.curve for result in one.results])
    rounds = np.arange(len(mean))
    (line,) = panel.plot(rounds, 100 * mean, color=colour, linestyle=dashes)
    if half is not None:
        panel.fill_between(rounds, 100 * (mean - half), 100 * (mean + half), color=colour, alpha=0.25, linewidth=0)
    return {label: line}


def _highest_percent(comparisons: Sequence[Comparison]) -> float:
    """At least so much that the axis has some length."""
    highest = max(max(result.curve) for one in comparisons for result in one.results)
    return max(100 * highest, _LOWEST_PERCENT[comparisons[0].cell.task] + 10.0)
