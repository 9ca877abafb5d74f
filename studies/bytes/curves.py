"""User accuracy over rounds and over bytes, a line for each encoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from studies.bytes.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE_INCHES = (10.0, 4.2)
LEAST_UA = 0.8


def draw(runs: Sequence[Run], target_ua: float) -> Figure:
    """Draw the runs of the first seed: left over completed rounds, right over the bytes of a client, both ways."""
    from matplotlib.figure import Figure  # without pyplot, which would keep every figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    by_rounds, by_bytes = figure.subplots(1, 2, sharey=True)
    for run in runs:
        if run.seed:
            continue
        style = {"color": "black", "linestyle": ":"} if run.private == "none" else {}
        by_rounds.plot(range(len(run.curve)), run.curve, linewidth=1.2, label=run.name, **style)
        by_bytes.plot(_megabytes(run), run.curve, linewidth=1.2, marker=".", markersize=3, **style)
    for axes in (by_rounds, by_bytes):
        axes.axhline(target_ua, color="black", linewidth=0.8, linestyle="--")
        axes.grid(alpha=0.3)
        axes.set_ylim(LEAST_UA, 1.0)
    by_rounds.set(xlabel="completed rounds", ylabel="user accuracy", xscale="log")
    by_bytes.set(xlabel="MB a client, down and up", xscale="log")
    by_rounds.legend(loc="lower right", fontsize="small")
    return figure


def _megabytes(run: Run) -> list[float]:
    """Return the bytes of a client until each point, with the download of the measured model."""
    ways = [down + up for down, up in zip(run.bytes_down, [0, *run.bytes_up], strict=True)]
    return [total / run.clients / 1e6 for total in accumulate(ways)]
