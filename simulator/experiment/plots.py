"""The picture of a study's user accuracy over rounds, and the common parts of all pictures.

Common parts are the SVG file and the style. matplotlib is imported only when a picture is drawn, with a backend that needs no
display.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
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
BLUE, ORANGE = "#0072B2", "#D55E00"

_READABLE = 0o644

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
