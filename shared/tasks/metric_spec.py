"""What a task's metric is: its name, which values it may have, and whether more of it is better."""

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
    """The terms of one metric. What a device measures by it is its *user accuracy*, whatever the metric is called.

    `goal` says whether larger values are better ("max") or smaller ones ("min"); `least` and `most` are the limits of a
    value, which are allowed themselves. Raises UsageError for terms that cannot be.
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
                f"metric {self.name!r}: from {self.least} to {self.most} is no range; give the lower limit first"
            )

    @property
    def is_accuracy(self) -> bool:
        """Whether it is the paper's: the share of examples that the model gets right."""
        return self.name == ACCURACY

    @property
    def is_fraction(self) -> bool:
        """Whether its values are fractions from 0 to 1."""
        return (self.least, self.most) == FRACTION

    @property
    def label(self) -> str:
        """In a heading or a line, as short as can be."""
        return "UA" if self.is_accuracy else self.name

    @property
    def words(self) -> str:
        """In full."""
        return "user accuracy" if self.is_accuracy else self.name

    @property
    def range_words(self) -> str:
        """What a value may be, for people."""
        if self.is_fraction:
            return "a fraction from 0 to 1"
        if (self.least, self.most) == (-MAX_MEASURE, MAX_MEASURE):
            return "a finite number"
        return f"a number from {self.least:g} to {self.most:g}"

    def allows(self, value: float) -> bool:
        """Whether a device may have measured `value`; never NaN."""
        return math.isfinite(value) and self.least <= value <= self.most

    def reached(self, value: float, target: float) -> bool:
        """Whether `value` is as good as `target`, or better."""
        return value >= target if self.goal == "max" else value <= target

    def worst(self, values: Iterable[float]) -> float | None:
        """The least good of some values; None without any."""
        return min(values, default=None) if self.goal == "max" else max(values, default=None)

    def worst_tenth(self, values: Iterable[float]) -> float | None:
        """What the worst tenth of some values is no better than; None without any.

        The 10th percentile, or the 90th where the goal is "min", with a straight line between neighbours.
        """
        ranked = sorted(values, reverse=self.goal == "min")
        if not ranked:
            return None
        place = (len(ranked) - 1) / 10
        below = int(place)
        above = min(below + 1, len(ranked) - 1)
        return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def metric_terms(name: str, goal: Goal, limits: tuple[float, float] | None) -> MetricTerms:
    """Without `limits` an accuracy is a fraction, and any other metric may be any finite number."""
    if limits is None:
        limits = FRACTION if name == ACCURACY else (-MAX_MEASURE, MAX_MEASURE)
    return MetricTerms(name, goal, *limits)
