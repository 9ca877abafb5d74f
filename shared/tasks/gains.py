"""The gain of devices over learning alone: how many gain, and by how much.

Runs, reports and the simulator describe a fleet by `gain_figures`. A gain has the sign of `gain_of`: above 0 is always good.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedpatch.shared.tasks.metric_spec import MetricTerms


def gain_of(value: float, alone: float, metric: MetricTerms) -> float:
    """Return the gain of one device over learning alone.

    Args:
        value: User accuracy with the federation.
        alone: User accuracy of the model trained alone.
        metric: The metric of both; with the goal "min" the sign changes.

    Example:
        >>> gain_of(0.2, 0.5, MetricTerms("mse", "min"))
        0.3
    """
    return alone - value if metric.goal == "min" else value - alone


def gain_figures(gains: Sequence[float]) -> dict[str, float]:
    """Describe the gains of a fleet.

    Args:
        gains: The gain of each device (`gain_of`), one or more.

    Returns:
        `gaining` and `losing`: shares of the devices, without equal ones; `gain`, `gain_median`: mean and median;
        `gain_p10`: the gain that nine of ten devices reach, with linear interpolation.

    Example:
        >>> gain_figures([0.5, 0.25, 0.0, -0.25])["gaining"]
        0.5
    """
    return {
        "gaining": sum(gain > 0 for gain in gains) / len(gains),
        "losing": sum(gain < 0 for gain in gains) / len(gains),
        "gain": statistics.fmean(gains),
        "gain_median": statistics.median(gains),
        "gain_p10": MetricTerms().p10(gains),
    }


def gain_words(gain: float, label: str) -> str:
    """Return a gain in words: in points (hundredths) of user accuracy, to one decimal, else in the unit of the metric.

    A gain of less than half a decimal is rounding error and has no sign.

    Example:
        >>> gain_words(0.021, "UA"), gain_words(1.5e-08, "UA"), gain_words(0.3, "mse")
        ('+2.1 points', '0 points', '+0.3')
    """
    if label != MetricTerms().label:
        return f"{gain:+.3g}" if gain else "0"
    points = round(100 * gain, 1)
    return f"{points:+.10g} points" if points else "0 points"
