"""An axis of a chart: from values to pixels, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0, 10.0)
_RELATIVE_SPAN = 1e-9  # values nearer to each other than that are one: floating point could not tell ticks between them


@dataclass(frozen=True)
class Axis:
    """Values from `least` to `most` lie from pixel `begin` to pixel `end`, which may be the lesser one."""

    least: float
    most: float
    begin: float
    end: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """The pixel of a value; one beyond the axis is at its end."""
        share = (value - self.least) / (self.most - self.least)
        return self.begin + (self.end - self.begin) * min(max(share, 0.0), 1.0)

    def words(self, tick: float) -> str:
        """A tick as a number, with as many decimals as its neighbours need."""
        largest = max(abs(self.least), abs(self.most))
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else largest
        if largest >= 1e6 or step < 1e-6:
            return f"{tick:.3g}".replace("e+0", "e").replace("e+", "e") if largest >= 1e6 else f"{tick:.6g}"
        return f"{tick + 0.0:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def make_axis(values: Iterable[float], begin: float, end: float, *, ticks: int = 5, whole: bool = False) -> Axis:
    """An axis on which all `values` (finite, at most 1e30 in size) have a place, with about so many round ticks.

    `whole` is for counts of things: it begins and ends at the values and has no tick between two whole numbers.
    """
    known = list(values)
    least, most = min(known, default=0.0), max(known, default=1.0)
    size = max(abs(least), abs(most))
    if most - least <= size * _RELATIVE_SPAN:
        half = max(size * _RELATIVE_SPAN * 1e3, 1e-3) if size else 0.5
        least, most = least - half, most + half
    step = _step((most - least) / max(1, ticks))
    if whole:
        step = max(1.0, step)
    else:
        least, most = math.floor(least / step + 1e-9) * step, math.ceil(most / step - 1e-9) * step
    first = math.ceil(least / step - 1e-9)
    count = math.floor((most - first * step) / step + 1e-9)
    found = tuple((first + number) * step for number in range(count + 1))
    return Axis(least, most, begin, end, found or (least,))


def _step(rough: float) -> float:
    """The first of 1, 2, 5, 10, 20 ... that is no less."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in _STEPS if step * power >= rough * (1 - 1e-9)), 10.0 * power)


def unit_for(most: float, units: Iterable[tuple[str, float]]) -> tuple[str, float]:
    """The first unit (a name, its size; the greatest first) of which `most` is two at least, or else the last."""
    known = list(units)
    return next((unit for unit in known if most >= 2 * unit[1]), known[-1])
