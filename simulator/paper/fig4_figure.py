"""Fig. 4 of the paper: user accuracy at every local step, without patches and with each kind of patch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simulator.figures import BLUE, ORANGE, drawing, legend_above, save, smooth, step_positions

_PANELS = (("stats", "(a) private μ, σ"), ("affine", "(b) private γ, β"), ("all", "(c) private μ, σ, γ, β"))
_WITH_INSET = "affine"
_SMOOTHED_ROUNDS = 5
_INSET_ROUNDS = 4
_FAINT = 0.35


def draw_fig4(measured: Mapping[str, Any], stem: Path) -> list[Path]:
    """Three panels, each with one kind of patch beside none; training accuracy faint, test accuracy solid.

    `measured` is {"policies": {policy: {"train": [...], "test": [...]}}, "steps_per_round": n}, policies none, stats,
    affine and all; a list holds, per round, user accuracy after aggregation and then after each of n steps. All is
    smoothed but the inset of panel (b), where the drops at aggregation are to be seen. Returns the paths of the PNG and
    the SVG.
    """
    policies, steps = measured["policies"], int(measured["steps_per_round"])
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


def _draw_pair(panel: Any, curves: Mapping[str, list[float]], label: str, colour: str, steps: int) -> dict[str, Any]:
    lines = {}
    for part, alpha, width in (("test", 1.0, 1.4), ("train", _FAINT, 1.1)):
        series = _smoothed(curves[part], steps)
        places = step_positions(len(series), steps)
        (lines[f"{label}, {part}"],) = panel.plot(places, series, color=colour, alpha=alpha, linewidth=width)
    return lines


def _draw_inset(panel: Any, none: Mapping[str, list[float]], patched: Mapping[str, list[float]], steps: int) -> None:
    """A few rounds in the middle of the run, as they were measured."""
    per_round = steps + 1
    rounds = len(none["test"]) // per_round
    first = max(0, rounds // 2 - _INSET_ROUNDS // 2) * per_round
    window = slice(first, first + _INSET_ROUNDS * per_round)
    inset = panel.inset_axes((0.42, 0.12, 0.55, 0.42))
    for curves, colour in ((none, ORANGE), (patched, BLUE)):
        places = step_positions(len(curves["test"]), steps)[window]
        inset.plot(places, 100 * np.asarray(curves["test"][window]), color=colour, linewidth=1.0)
    inset.set_title("test, not smoothed", fontsize=7, pad=2)
    inset.tick_params(labelsize=6)
    inset.margins(x=0)


def _limits(policies: Mapping[str, Mapping[str, list[float]]], steps: int) -> tuple[float, float]:
    """From where the slowest curve is after a twentieth of the run, so that the steep beginning does not flatten the rest."""
    series = [_smoothed(values, steps) for one in policies.values() for values in one.values()]
    low = min(float(one[len(one) // 20 :].min()) for one in series)
    high = max(float(one.max()) for one in series)
    return np.floor(low), min(100.3, high + 0.05 * (high - low))


def _smoothed(values: list[float], steps: int) -> np.ndarray:
    return 100 * smooth(values, _SMOOTHED_ROUNDS * (steps + 1))
