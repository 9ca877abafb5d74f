"""The curves of a report as a PNG, for papers and slides. matplotlib draws it, and is imported only then."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from coordinator.report.series import Run, by_round, curve
from shared.errors import UsageError

_INCHES = (7.2, 4.2)
_DOTS_PER_INCH = 150


def require_matplotlib() -> None:
    """Raise UsageError where no picture can be drawn: before anything is written."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "a PNG is drawn with matplotlib, which is not installed: pip install 'fedpatch[simulator]'; "
            "the HTML report and the CSV do without"
        )


def draw_png(runs: Sequence[Run]) -> bytes:
    """User accuracy by round as a PNG: mean, worst tenth and worst of one run; the mean of each of several."""
    from matplotlib.figure import Figure  # without pyplot, which would keep every figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    if len(runs) == 1:
        _draw_one(axes, runs[0])
    else:
        for run in runs:
            _plot(axes, run, "user_accuracy", run.info.id)
    axes.set(xlabel="round", ylabel=" / ".join(dict.fromkeys(_plain(run.metric.words) for run in runs)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)
    return file.getvalue()


def _draw_one(axes: Any, run: Run) -> None:
    _plot(axes, run, "user_accuracy", "mean")
    _plot(axes, run, "user_accuracy_p10", run.tenth_words, linestyle="--")
    _plot(axes, run, "user_accuracy_min", run.worst_words, linestyle=":")
    if run.target is not None:
        axes.axhline(run.target, color="black", linewidth=0.8, linestyle="--", label="target")
    axes.set_title(_plain(f"{run.info.id}: {run.info.task}, {run.info.strategy}, private {run.info.private}"))


def _plot(axes: Any, run: Run, field: str, label: str, **look: Any) -> None:
    if points := curve(by_round(run.records), run.records, field):
        marker = "o" if len(points) == 1 else None
        axes.plot(*zip(*points, strict=True), label=label, marker=marker, **look)


def _plain(text: str) -> str:
    """Without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
