"""Fig. 3 of the paper: what aggregation does to user accuracy, and to what batch norm hands on (Eq. 10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.figures import BLUE, GREEN, ORANGE, drawing, legend_above, save, step_positions

_CURVES = (("ind", "independent", GREEN), ("fl", "FL(FedAvg)", ORANGE), ("mtfl", "MTFL(FedAvg)", BLUE))
_SHIFTS = (("mean", "shift of the mean"), ("var", "shift of the variance"))


def draw_fig3(measured: Mapping[str, Any], stem: Path) -> list[Path]:
    """Panel (a) as `stem`-a and panel (b) as `stem`-b; `measured` holds what both want, (b)'s layers under "layers"."""
    panel_a = draw_fig3a(measured, stem.with_name(f"{stem.name}-a"))
    return [*panel_a, *draw_fig3b(measured["layers"], stem.with_name(f"{stem.name}-b"))]


def draw_fig3a(measured: Mapping[str, Any], stem: Path) -> list[Path]:
    """User accuracy at every step of a few rounds, aggregations as vertical lines.

    `measured` is {"ind": [...], "fl": [...], "mtfl": [...], "steps_per_round": n}; a list holds, per round, user accuracy
    after aggregation and then after each of n steps. Returns the paths of the PNG and the SVG.
    """
    steps = int(measured["steps_per_round"])
    with drawing(1, 1, width_in=6.0, height_in=3.4) as (figure, panels):
        panel, lines = panels[0][0], {}
        for key, label, colour in _CURVES:
            places = step_positions(len(measured[key]), steps)
            (lines[label],) = panel.plot(places, 100 * np.asarray(measured[key]), color=colour)
        last = step_positions(len(measured["fl"]), steps)[-1]
        for place in range(steps, last, steps):
            panel.axvline(place, color="#b0b0b0", linewidth=0.6, linestyle=":")
        panel.set(xlabel="local step (dotted: aggregation)", ylabel="user accuracy (%)")
        panel.margins(x=0)
        legend_above(figure, lines)
        return save(figure, stem)


def draw_fig3b(layers: Sequence[Mapping[str, Any]], stem: Path) -> list[Path]:
    """How far aggregation moves what a batch norm layer puts out, with the layer private and with it federated.

    `layers` has one entry per layer and round: {"layer", "round", "mean_shift_private", "mean_shift_federated",
    "var_shift_private", "var_shift_federated", "share_holding_mean", "share_holding_var"}: the two sides of Eq. (10),
    averaged over neurons and clients, and the share of them for which it holds. A row of panels per layer. Returns the
    paths of the PNG and the SVG.
    """
    names = list(dict.fromkeys(one["layer"] for one in layers))
    with drawing(len(names), 3, width_in=10.0, height_in=0.6 + 2.5 * len(names), sharex="row") as (figure, panels):
        lines: dict[str, Any] = {}
        for row, name in zip(panels, names, strict=True):
            here = sorted((one for one in layers if one["layer"] == name), key=lambda one: int(one["round"]))
            for panel, (moment, title) in zip(row[:2], _SHIFTS, strict=True):
                lines |= _draw_shift(panel, here, moment)
                panel.set_title(f"{name}: {title}", fontsize=9)
            _draw_shares(row[2], here, name)
            row[0].set_ylabel("mean over neurons and clients")
        for panel in panels[-1]:
            panel.set_xlabel("round")
        legend_above(figure, lines)
        return save(figure, stem)


def _draw_shift(panel: Any, entries: Sequence[Mapping[str, Any]], moment: str) -> dict[str, Any]:
    """On a logarithmic axis: a shift is large at first, and small at the end."""
    lines = {}
    for side, label, colour in (
        ("private", "private (Eq. 10, left)", BLUE),
        ("federated", "federated (right)", ORANGE),
    ):
        (lines[label],) = panel.plot(_rounds(entries), [one[f"{moment}_shift_{side}"] for one in entries], color=colour)
    panel.set_yscale("log")
    panel.margins(x=0)
    return lines


def _draw_shares(panel: Any, entries: Sequence[Mapping[str, Any]], name: str) -> None:
    for (moment, _), dashes in zip(_SHIFTS, ("-", "--"), strict=True):
        shares = [100 * one[f"share_holding_{moment}"] for one in entries]
        label = {"mean": "mean", "var": "variance"}[moment]
        panel.plot(_rounds(entries), shares, color="#404040", linestyle=dashes, label=label)
    panel.set(ylim=(0, 102), ylabel="neurons where it holds (%)")
    panel.set_title(f"{name}: Eq. (10)", fontsize=9)
    panel.margins(x=0)
    panel.legend(loc="lower right")


def _rounds(entries: Iterable[Mapping[str, Any]]) -> list[int]:
    return [int(one["round"]) for one in entries]
