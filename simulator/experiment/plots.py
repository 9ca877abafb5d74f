"""The picture of a study's user accuracy over rounds, and the common parts of all pictures.

Common parts are the SVG file, the style, means with their confidence, smoothing, and the legend. matplotlib is
imported only when a picture is drawn, with a backend that needs no display.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.metric_spec import ACCURACY
from fedpatch.shared.wire.plan_terms import PLAN_TERMS
from fedpatch.simulator.spec.study import BASELINES, Outcome, Study

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


SIZE_INCHES = (6.4, 4.0)


def require_matplotlib() -> None:
    """Raise UsageError if pictures cannot be drawn, before hours of computing."""
    if find_spec("matplotlib") is None:
        raise UsageError("curves are drawn with matplotlib, which is not installed: pip install 'fedpatch[simulator]'")


def draw_outcome(outcome: Outcome) -> Figure:
    """Draw user accuracy of every point: the mean, the worst tenth and the worst client, with the target if there is one."""
    from matplotlib.figure import Figure  # without pyplot, which would keep every figure
    from matplotlib.ticker import MaxNLocator

    study = outcome.study
    low = study.metric_goal == "max"
    rounds = [point.round for point in outcome.points]
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(rounds, [point.user_accuracy for point in outcome.points], label="mean")
    axes.plot(
        rounds,
        [point.p10 for point in outcome.points],
        linewidth=1,
        label="10th percentile" if low else "90th percentile",
    )
    axes.plot(rounds, [point.lowest for point in outcome.points], linewidth=0.7, label="lowest" if low else "highest")
    if study.target_ua is not None:
        reached = outcome.rounds_to_target
        words = "not reached" if reached is None else f"reached after {reached}"
        axes.axhline(study.target_ua, color="black", linewidth=0.8, linestyle="--", label=f"target, {words}")
    axes.set(xlabel="completed rounds", ylabel=study.measure_words, title=title(study))
    if study.metric == ACCURACY:
        axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if low else "upper right")
    return figure


def title(study: Study) -> str:
    """Return a study in one line."""
    private = f", private {study.private}" if study.strategy not in BASELINES else ""
    terms = "".join(f", {name} {value}" for name in PLAN_TERMS if (value := getattr(study, name)))
    share = f", {study.participation:.3g} of them in each round" if study.participation < 1 else ""
    return f"{study.task}, {study.strategy}{private}{terms}, {study.clients} clients{share}"


# Okabe and Ito's colours, which people with any colour vision can distinguish.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"

_READABLE = 0o644

# Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z95 = 1.959964

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}


@contextmanager
def drawing(
    rows: int, columns: int, *, width_in: float, height_in: float, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure of `rows` x `columns` panels in the common style, and an array of the panels.

    `options` are those of `Figure.subplots`.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Figure, stem: Path) -> Path:
    """Write `stem`.svg completely or not at all; return its path. Call it within the block of `drawing`.

    The same figure gives the same bytes: the SVG has no date, no random ids and no spaces at line ends.
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "fedpatch"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_name(f"{stem.name}.svg")
    write_atomic(path, re.sub(rb"[ \t]+$", b"", file.getvalue(), flags=re.MULTILINE), mode=_READABLE)
    return path


def mean_and_confidence(curves: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the mean of n curves of the same length, and half the width of its 95 % confidence interval (Student's t).

    For one curve the width is None.
    """
    import numpy as np

    values = np.asarray(curves, dtype=np.float64)
    mean: np.ndarray = values.mean(axis=0)
    if len(values) < 2:
        return mean, None
    half: np.ndarray = _student_95(len(values) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return mean, half


def _student_95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t to 0.001; beyond the table by Abramowitz and Stegun, 26.7.5."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def smooth(values: Sequence[float] | np.ndarray, width: int) -> np.ndarray:
    """Return the mean over `width` values around each value; at the ends over fewer values. The length stays."""
    import numpy as np

    series = np.asarray(values, dtype=np.float64)
    width = max(1, min(width, len(series)))
    sums = np.concatenate([[0.0], np.cumsum(series)])
    first = np.maximum(np.arange(len(series)) - (width - 1) // 2, 0)
    last = np.minimum(np.arange(len(series)) + width // 2, len(series) - 1) + 1
    averaged: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return averaged


def step_positions(count: int, steps_per_round: int) -> np.ndarray:
    """Return the position, in local steps, of each of `count` values; every round also has a value before its first step.

    The value after aggregation and the value after the last step of the previous round have the same position.
    """
    import numpy as np

    per_round = steps_per_round + 1
    index = np.arange(count)
    places: np.ndarray = index // per_round * steps_per_round + index % per_round
    return places


def legend_above(figure: Figure, lines: Mapping[str, Any]) -> None:
    """Draw one legend for all panels, in a row above them."""
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=len(lines))
