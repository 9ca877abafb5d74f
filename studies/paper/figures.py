"""Fig. 3 of the paper: the effect of aggregation on user accuracy and on the outputs of batch norm (Eq. 10).

Fig. 4 of the paper: user accuracy at every local step, without patches and with each kind of patch.

Fig. 5 of the paper: user accuracy per round of four algorithms, a panel per data set, W and C.

Each line is the mean over the seeds, its band the 95 % confidence interval of this mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.simulator.experiment.plots import BLUE, ORANGE, drawing, save
from fedpatch.simulator.spec.published_rates import SCENARIOS
from studies.paper.comparison import Comparison, datasets
from studies.paper.curves import legend_above, mean_and_confidence, smooth, step_positions
from studies.paper.published import TARGET_UA

# Of Okabe and Ito's colours, as BLUE and ORANGE.
GREEN, PINK = "#009E73", "#CC79A7"

_CURVES = (("ind", "independent", GREEN), ("fl", "FL(FedAvg)", ORANGE), ("mtfl", "MTFL(FedAvg)", BLUE))
_SHIFTS = (("mean", "shift of the mean"), ("var", "shift of the variance"))
_BAND = 0.25
_Curves = Sequence[Mapping[str, Sequence[float]]]
"""Training and test accuracy at every step, by seed."""


def draw_fig3(seeds: Sequence[Mapping[str, Any]], stem: Path) -> list[Path]:
    """Draw panel (a) as `stem`-a and panel (b) as `stem`-b, means over the seeds; (b) draws each seed's "layers"."""
    panel_a = draw_fig3a(seeds, stem.with_name(f"{stem.name}-a"))
    return [panel_a, draw_fig3b([one["layers"] for one in seeds], stem.with_name(f"{stem.name}-b"))]


def draw_fig3a(seeds: Sequence[Mapping[str, Any]], stem: Path) -> Path:
    """Draw user accuracy at every step of a few rounds, aggregations as vertical lines.

    An entry of `seeds` is {"ind": [...], "fl": [...], "mtfl": [...], "steps_per_round": n}; a list has, per round, user
    accuracy after aggregation and then after each of n steps. Returns the path of the SVG.
    """
    steps = int(seeds[0]["steps_per_round"])
    with drawing(1, 1, width_in=6.0, height_in=3.4) as (figure, panels):
        panel, lines = panels[0][0], {}
        for key, label, colour in _CURVES:
            curves = [100 * np.asarray(one[key]) for one in seeds]
            lines[label] = _draw_band(panel, step_positions(len(curves[0]), steps), curves, color=colour)
        last = step_positions(len(seeds[0]["fl"]), steps)[-1]
        for place in range(steps, last, steps):
            panel.axvline(place, color="#b0b0b0", linewidth=0.6, linestyle=":")
        panel.set(xlabel="local step (dotted: aggregation)", ylabel="user accuracy (%)")
        panel.margins(x=0)
        legend_above(figure, lines)
        return save(figure, stem)


def draw_fig3b(seeds: Sequence[Sequence[Mapping[str, Any]]], stem: Path) -> Path:
    """Draw how far aggregation moves the outputs of a batch norm layer, for a private and for a federated layer.

    Each seed has one entry per layer and round: {"layer", "round", "mean_shift_private", "mean_shift_federated",
    "var_shift_private", "var_shift_federated", "share_holding_mean", "share_holding_var"}: the two sides of Eq. (10),
    averaged over neurons and clients, and the share of these for which Eq. (10) holds. A row of panels per layer. Returns
    the path of the SVG.
    """
    names = list(dict.fromkeys(one["layer"] for one in seeds[0]))
    with drawing(len(names), 3, width_in=10.0, height_in=0.6 + 2.5 * len(names), sharex="row") as (figure, panels):
        lines: dict[str, Any] = {}
        for row, name in zip(panels, names, strict=True):
            here = [_layer(layers, name) for layers in seeds]
            for panel, (moment, title) in zip(row[:2], _SHIFTS, strict=True):
                lines |= _draw_shift(panel, here, moment)
                panel.set_title(f"{name}: {title}", fontsize=9)
            _draw_shares(row[2], here, name)
            row[0].set_ylabel("mean over neurons and clients")
        for panel in panels[-1]:
            panel.set_xlabel("round")
        legend_above(figure, lines)
        return save(figure, stem)


def _layer(layers: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the entries of one layer by round."""
    return sorted((one for one in layers if one["layer"] == name), key=lambda one: int(one["round"]))


def _draw_band(panel: Any, places: Sequence[int] | np.ndarray, curves: Sequence[Any], **looks: Any) -> Any:
    """Draw the mean of curves, one for each seed, and the 95 % confidence interval if there are several.

    Args:
        panel: Axes of matplotlib.
        places: Positions on the x axis.
        curves: Values of each seed at `places`.
        **looks: Looks of the line; the band has its colour.

    Returns:
        The line.
    """
    mean, half = mean_and_confidence(curves)
    (line,) = panel.plot(places, mean, **looks)
    if half is not None:
        faint = _BAND * looks.get("alpha", 1.0)
        panel.fill_between(places, mean - half, mean + half, color=looks["color"], alpha=faint, linewidth=0)
    return line


def _draw_shift(panel: Any, seeds: Sequence[Sequence[Mapping[str, Any]]], moment: str) -> dict[str, Any]:
    """Draw shifts on a logarithmic axis: they are large at first, and small at the end."""
    lines = {}
    for side, label, colour in (
        ("private", "private (Eq. 10, left)", BLUE),
        ("federated", "federated (right)", ORANGE),
    ):
        curves = [[one[f"{moment}_shift_{side}"] for one in entries] for entries in seeds]
        lines[label] = _draw_band(panel, _rounds(seeds[0]), curves, color=colour)
    panel.set_yscale("log")
    panel.margins(x=0)
    return lines


def _draw_shares(panel: Any, seeds: Sequence[Sequence[Mapping[str, Any]]], name: str) -> None:
    for (moment, _), dashes in zip(_SHIFTS, ("-", "--"), strict=True):
        shares = [[100 * one[f"share_holding_{moment}"] for one in entries] for entries in seeds]
        label = {"mean": "mean", "var": "variance"}[moment]
        _draw_band(panel, _rounds(seeds[0]), shares, color="#404040", linestyle=dashes, label=label)
    panel.set(ylim=(0, 102), ylabel="neurons where it holds (%)")
    panel.set_title(f"{name}: Eq. (10)", fontsize=9)
    panel.margins(x=0)
    panel.legend(loc="lower right")


def _rounds(entries: Iterable[Mapping[str, Any]]) -> list[int]:
    return [int(one["round"]) for one in entries]


_PANELS = (("stats", "(a) private μ, σ"), ("affine", "(b) private γ, β"), ("all", "(c) private μ, σ, γ, β"))
_WITH_INSET = "affine"
_SMOOTHED_ROUNDS = 5
_INSET_ROUNDS = 4
_FAINT = 0.35


def draw_fig4(seeds: Sequence[Mapping[str, Any]], stem: Path) -> Path:
    """Draw three panels, each with one kind of patch beside none; training accuracy faint, test accuracy solid.

    An entry of `seeds` is {"policies": {policy: {"train": [...], "test": [...]}}, "steps_per_round": n}, policies none,
    stats, affine and all; a list holds, per round, user accuracy after aggregation and then after each of n steps. All is
    smoothed except the inset of panel (b), which shows the drops at aggregation. Returns the path of the SVG.
    """
    steps = int(seeds[0]["steps_per_round"])
    policies = {name: [one["policies"][name] for one in seeds] for name in seeds[0]["policies"]}
    with drawing(1, len(_PANELS), width_in=11.0, height_in=3.6, sharey=True) as (figure, panels):
        lines: dict[str, Any] = {}
        for panel, (policy, title) in zip(panels[0], _PANELS, strict=True):
            lines |= _draw_pair(panel, policies["none"], "FL(FedAvg)", ORANGE, steps)
            lines |= _draw_pair(panel, policies[policy], "MTFL(FedAvg)", BLUE, steps)
            panel.set(title=title, xlabel="local step")
            panel.margins(x=0)
            if policy == _WITH_INSET:
                _draw_inset(panel, policies["none"], policies[policy], steps)
        panels[0][0].set_ylabel("user accuracy (%)")
        panels[0][0].set_ylim(*_limits(policies, steps))
        legend_above(figure, lines)
        return save(figure, stem)


def _draw_pair(panel: Any, seeds: _Curves, label: str, colour: str, steps: int) -> dict[str, Any]:
    lines = {}
    for part, alpha, width in (("test", 1.0, 1.4), ("train", _FAINT, 1.1)):
        series = [_smoothed(one[part], steps) for one in seeds]
        places, looks = step_positions(len(series[0]), steps), {"color": colour, "alpha": alpha, "linewidth": width}
        lines[f"{label}, {part}"] = _draw_band(panel, places, series, **looks)
    return lines


def _draw_inset(panel: Any, none: _Curves, patched: _Curves, steps: int) -> None:
    """Draw a few rounds in the middle of the run, as they were measured."""
    per_round = steps + 1
    count = len(none[0]["test"])
    first = max(0, count // per_round // 2 - _INSET_ROUNDS // 2) * per_round
    window = slice(first, first + _INSET_ROUNDS * per_round)
    inset = panel.inset_axes((0.42, 0.12, 0.55, 0.42))
    for seeds, colour in ((none, ORANGE), (patched, BLUE)):
        curves = [100 * np.asarray(one["test"][window]) for one in seeds]
        _draw_band(inset, step_positions(count, steps)[window], curves, color=colour, linewidth=1.0)
    inset.set_title("test, not smoothed", fontsize=7, pad=2)
    inset.tick_params(labelsize=6)
    inset.margins(x=0)


def _limits(policies: Mapping[str, _Curves], steps: int) -> tuple[float, float]:
    """Return limits from the slowest curve after a twentieth of the run: with the steep beginning the rest would look flat."""
    series = [_smoothed(values, steps) for seeds in policies.values() for one in seeds for values in one.values()]
    low = min(float(one[len(one) // 20 :].min()) for one in series)
    high = max(float(one.max()) for one in series)
    return np.floor(low), min(100.3, high + 0.05 * (high - low))


def _smoothed(values: Sequence[float], steps: int) -> np.ndarray:
    return 100 * smooth(values, _SMOOTHED_ROUNDS * (steps + 1))


_LINES = {
    ("fedavg", "none"): ("FL(FedAvg)", ORANGE, "-"),
    ("fedavg", "affine"): ("MTFL(FedAvg), private γ, β", BLUE, "-"),
    ("pfedme", "none"): ("pFedMe", GREEN, "--"),
    ("per-fedavg", "none"): ("Per-FedAvg", PINK, "-."),
}
_LOWEST_PERCENT = {"mnist": 80.0, "cifar10": 30.0}  # lower values occur only in the first few rounds


def draw_fig5(comparisons: Sequence[Comparison], stem: Path) -> Path:
    """Draw the computed parts of Fig. 5: the mean over the seeds, and its 95 % confidence interval if there are several.

    Returns the path of the SVG.
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
    """Draw a row of panels; return the lines by label."""
    lines: dict[str, Any] = {}
    for panel, (clients, participation) in zip(row, SCENARIOS, strict=True):
        setting = (clients, participation)
        finished = [one for one in comparisons if one.whole and (one.cell.clients, one.cell.participation) == setting]
        for one in finished:
            lines |= _draw_curve(panel, one)
        panel.set_title(f"W = {clients}, C = {participation}", fontsize=9)
        panel.margins(x=0)
        if not finished:
            panel.text(0.5, 0.5, "not computed yet", transform=panel.transAxes, ha="center", color="#767676")
    return lines


def _draw_curve(panel: Any, one: Comparison) -> dict[str, Any]:
    label, colour, dashes = _LINES[one.cell.strategy, one.cell.private]
    curves = [100 * np.asarray(result.curve) for result in one.whole]
    return {label: _draw_band(panel, range(len(curves[0])), curves, color=colour, linestyle=dashes)}


def _highest_percent(comparisons: Sequence[Comparison]) -> float:
    """Return the upper limit of the axis, which gives the axis a minimum length."""
    highest = max(max(result.curve) for one in comparisons for result in one.results)
    return max(100 * highest, _LOWEST_PERCENT[comparisons[0].cell.task] + 10.0)
