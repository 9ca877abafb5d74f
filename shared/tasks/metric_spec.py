"""`MetricTerms`: the name of a task's metric, its range, and whether larger values are better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.field_types import MAX_MEASURE

Goal = Literal["max", "min"]

ACCURACY = "accuracy"
FRACTION = (0.0, 1.0)
MAX_NAME = 24


@dataclass(frozen=True)
class MetricTerms:
    """Description of a metric. A device's value of it is its *user accuracy*, for any name of the metric.

    Attributes:
        name: Name of the metric.
        goal: "max" if larger values are better, "min" if smaller ones are.
        least: Smallest possible value.
        most: Largest possible value.

    Raises:
        UsageError: An attribute is not allowed.

    Example:
        >>> error = MetricTerms("mean absolute error", goal="min", least=0.0, most=100.0)
        >>> error.reached(1.5, target=2.0)
        True
    """

    name: str = ACCURACY
    goal: Goal = "max"
    least: float = FRACTION[0]
    most: float = FRACTION[1]

    def __post_init__(self) -> None:
        if not (1 <= len(self.name) <= MAX_NAME and self.name.isprintable() and self.name == self.name.strip()):
            raise UsageError(f"metric name {self.name!r} is not allowed; use 1 to {MAX_NAME} printable characters")
        if self.goal not in get_args(Goal):
            raise UsageError(f"metric {self.name!r}: its goal is {self.goal!r}; it must be 'max' or 'min'")
        if not -MAX_MEASURE <= self.least < self.most <= MAX_MEASURE:
            raise UsageError(
                f"metric {self.name!r}: from {self.least} to {self.most} is not a range; give the lower limit first"
            )

    @property
    def is_accuracy(self) -> bool:
        """True if the metric is the paper's: the share of examples that the model classifies correctly."""
        return self.name == ACCURACY

    @property
    def is_fraction(self) -> bool:
        """True if values are fractions from 0 to 1."""
        return (self.least, self.most) == FRACTION

    @property
    def label(self) -> str:
        """Short name, for headings and tables."""
        return "UA" if self.is_accuracy else self.name

    @property
    def words(self) -> str:
        """Full name."""
        return "user accuracy" if self.is_accuracy else self.name

    @property
    def range_words(self) -> str:
        """Description of the range, for messages."""
        if self.is_fraction:
            return "a fraction from 0 to 1"
        return f"a number from {self.least:g} to {self.most:g}"

    def allows(self, value: float) -> bool:
        """Return whether `value` is finite and within the range."""
        return math.isfinite(value) and self.least <= value <= self.most

    def reached(self, value: float, target: float) -> bool:
        """Return whether `value` is as good as `target`, or better."""
        return value >= target if self.goal == "max" else value <= target

    def worst(self, values: Iterable[float]) -> float | None:
        """Return the worst of some values; None without any."""
        return min(values, default=None) if self.goal == "max" else max(values, default=None)

    def worst_tenth(self, values: Iterable[float]) -> float | None:
        """Return the bound of the worst tenth of some values (`p10`); None without any."""
        known = list(values)
        return self.p10(known) if known else None

    def p10(self, values: Iterable[float]) -> float:
        """Return the bound of the worst tenth of one or more values.

        It is the 10th percentile, or the 90th if the goal is "min", with linear interpolation.
        """
        ranked = sorted(values, reverse=self.goal == "min")
        place = (len(ranked) - 1) / 10
        below = int(place)
        above = min(below + 1, len(ranked) - 1)
        return float(ranked[below] + (ranked[above] - ranked[below]) * (place - below))


def metric_terms(name: str, goal: Goal, limits: tuple[float, float] | None) -> MetricTerms:
    """Make the terms of a metric.

    Args:
        goal: "max" or "min".
        limits: Smallest and largest value. None: 0 and 1 for an accuracy, any finite number for another metric.

    Returns:
        The terms.

    Raises:
        UsageError: An argument is not allowed.
    """
    if limits is None:
        limits = FRACTION if name == ACCURACY else (-MAX_MEASURE, MAX_MEASURE)
    return MetricTerms(name, goal, *limits)
