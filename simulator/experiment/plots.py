"""User accuracy over rounds as a picture. matplotlib draws without a display, and is imported only where one is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from shared.errors import UsageError
from shared.metric_terms import ACCURACY
from simulator.study import STRATEGIES_OF_MTFL, Outcome, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE_INCHES = (6.4, 4.0)


def require_matplotlib() -> None:
    """Raise UsageError where pictures cannot be drawn: better before hours of computing than after them."""
    if find_spec("matplotlib") is None:
        raise UsageError("curves are drawn with matplotlib, which is not installed: pip install 'fedpatch[simulator]'")


def draw_outcome(outcome: Outcome) -> Figure:
    """User accuracy of every point: the mean, the worst tenth, the worst client; and the target, where there is one."""
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
    """A study in one line."""
    private = f", private {study.private}" if study.strategy in STRATEGIES_OF_MTFL else ""
    share = f", {study.participation:.3g} of them in each round" if study.participation < 1 else ""
    return f"{study.task}, {study.strategy}{private}, {study.clients} clients{share}"
