"""Stacked bars: what a round's seconds, bytes or devices were made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.records import RoundRecord
from coordinator.report.chart import FRAMES, Frame, Title, Words, axes, figure, picture
from coordinator.report.markup import Markup, element
from coordinator.report.series import MAX_ROUND, rounds_words, stretches, within

MAX_BARS = {"wide": 120, "narrow": 60}
"""In one chart; of more rounds, a bar is the mean of several."""


@dataclass(frozen=True)
class Bars:
    """A bar for each round, of `parts` from the bottom up: `values_of` a record has one number, at least 0, for each.

    `unit` is how much one is on the y axis, whose name the title has; `words` tells a value to whoever points at it.
    """

    title: Title
    parts: Sequence[str]
    records: Sequence[RoundRecord]
    values_of: Callable[[RoundRecord], Sequence[float]]
    words: Words
    unit: float = 1.0


def bars_figure(chart: Bars) -> Markup:
    """The chart with its legend; says where a bar is the mean of several rounds."""
    legend = [(name, f"part{index}", "block") for index, name in enumerate(chart.parts)]
    most = max((len(one) for one in stretches(chart.records, MAX_BARS["wide"])), default=1)
    note = f"Each bar is the mean of {most} rounds (more on a narrow page)." if most > 1 else ""
    if most == 1 and len(chart.records) > MAX_BARS["narrow"]:
        note = "On a narrow page, each bar is the mean of several rounds."
    return figure(chart.title, [draw_bars(chart, frame) for frame in FRAMES], legend, note)


def draw_bars(chart: Bars, frame: Frame) -> Markup:
    """The chart as SVG, at the size of `frame`."""
    groups = stretches(chart.records, MAX_BARS[frame.name])
    means = [_mean([chart.values_of(record) for record in group]) for group in groups]
    numbers = [within(group[0].round, MAX_ROUND) for group in groups]
    sums = [sum(values) / chart.unit for values in means]
    y = frame.y_axis([0.0, *sums] if any(sums) else [0.0, 1.0])
    frame = frame.beside(y)
    room = (frame.width - frame.left - frame.right) / max(1, len(groups))
    labels = frame.x_axis([-0.5, max(1, len(groups)) - 0.5])
    bars = []
    for index, (group, values) in enumerate(zip(groups, means, strict=True)):
        total = 0.0
        for part, value in enumerate(values):
            low, total = y.place(total), total + value / chart.unit
            if (high := low - y.place(total)) < 0.05:
                continue
            told = f"{rounds_words(group)}, {chart.parts[part]}: {chart.words(value)}"
            at = labels.place(index - 0.4)
            bar = dict(x=at, y=low - high, width=room * 0.8, height=high)
            bars.append(element("rect", element("title", told), **bar, class_=f"part{part}"))
    ruled = axes(chart.title, frame, labels, y, lambda tick: _round_at(tick, numbers))
    return picture(chart.title, frame, ruled, *bars)


def _round_at(tick: float, numbers: Sequence[float]) -> str:
    """The axis counts bars; what stands below its ticks is the round that the bar begins with."""
    return f"{numbers[int(tick)]:.0f}" if 0 <= tick < len(numbers) else ""


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
