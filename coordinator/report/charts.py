"""What all charts have: a frame with axes, a name and a description for those who do not see it, a legend.

An axis of a chart: from values to pixels, and which values are written beside it.

Curves: user accuracy over rounds or over time.

Stacked bars: what a round's seconds, bytes or devices were made of.

The curves of a report as a PNG, for papers and slides. matplotlib draws it, and is imported only then.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from fedpatch.coordinator.report.markup import Markup, coordinate, element, joined
from fedpatch.coordinator.report.series import (
    MAX_ROUND,
    Point,
    Run,
    by_round,
    curve,
    rounds_words,
    stretches,
    thinned,
    within,
)
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.shared.errors import UsageError

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


Words = Callable[[float], str]
"""A value in words."""
_DIGIT = 7.7
"""Pixels that a digit takes in a broad font."""


@dataclass(frozen=True)
class Frame:
    """The size of a chart in pixels, and how many ticks have room. Each chart is drawn for both widths of a page."""

    name: str
    width: float
    height: float
    x_ticks: int
    left: float = 40.0
    right: float = 14.0
    top: float = 12.0
    bottom: float = 42.0

    def beside(self, y: Axis) -> Frame:
        """With room for what is written beside the axis `y`."""
        longest = max((len(y.words(tick)) for tick in y.ticks), default=0)
        return replace(self, left=max(self.left, 12.0 + _DIGIT * longest))

    def x_axis(self, values: Iterable[float], *, whole: bool = True) -> Axis:
        """From left to right."""
        return make_axis(values, self.left, self.width - self.right, ticks=self.x_ticks, whole=whole)

    def y_axis(self, values: Iterable[float]) -> Axis:
        """From the bottom up."""
        return make_axis(values, self.height - self.bottom, self.top, ticks=5)


WIDE = Frame("wide", 720.0, 300.0, 10)
NARROW = Frame("narrow", 320.0, 250.0, 5)
FRAMES = (WIDE, NARROW)


@dataclass(frozen=True)
class Title:
    """What a chart is called and, in a sentence or two, what it shows; `key` names it within the page."""

    key: str
    name: str
    description: str
    x_words: str
    unit: str = ""


def picture(title: Title, frame: Frame, *content: str) -> Markup:
    """The chart as an SVG image with an accessible name."""
    ids = [f"{title.key}-{frame.name}-{part}" for part in ("title", "desc")]
    return element(
        "svg",
        element("title", title.name, id=ids[0]),
        element("desc", title.description, id=ids[1]),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {frame.width:.0f} {frame.height:.0f}",
        role="img",
        aria_labelledby=ids[0],
        aria_describedby=ids[1],
        class_=f"chart {frame.name}",
    )


def axes(title: Title, frame: Frame, x: Axis, y: Axis, x_words: Words | None = None) -> Markup:
    """Grid, ticks and what is measured."""
    floor, parts = frame.height - frame.bottom, []
    for tick in y.ticks:
        at = y.place(tick)
        parts.append(element("line", x1=frame.left, x2=frame.width - frame.right, y1=at, y2=at, class_="grid"))
        parts.append(element("text", y.words(tick), x=frame.left - 6.0, y=at, dy="0.32em", class_="end"))
    for tick in x.ticks:
        at = x.place(tick)
        parts.append(element("line", x1=at, x2=at, y1=floor, y2=floor + 4.0, class_="grid"))
        words = x_words(tick) if x_words else x.words(tick)
        room = frame.width - at
        place = {"x": at, "class_": "middle"} if room > len(words) * _DIGIT / 2 else {"x": frame.width, "class_": "end"}
        parts.append(element("text", words, y=floor + 17.0, **place))
    middle = (frame.left + frame.width - frame.right) / 2
    parts.append(element("text", title.x_words, x=middle, y=frame.height - 6.0, class_="middle"))
    return joined(*parts)


def figure(title: Title, drawn: Sequence[str], legend: Sequence[tuple[str, str, str]], note: str = "") -> Markup:
    """The chart at both widths, what is in it, and a caption. `legend` has (name, look, kind): kind is line or block."""
    entries = [element("li", _swatch(look, kind), " ", name) for name, look, kind in legend]
    unit = element("span", f" · {title.unit}", class_="unit") if title.unit else Markup()
    heading = element("h4", title.name, unit)
    return element(
        "figure",
        heading,
        element("ul", *entries, class_="legend") if entries else Markup(),
        *drawn,
        element("figcaption", f"{title.description} {note}".strip()),
        aria_label=title.name,
    )


def _swatch(look: str, kind: str) -> Markup:
    shape = (
        element("line", x1=0, x2=24, y1=6, y2=6, class_=f"curve {look}")
        if kind == "line"
        else element("rect", x=6, y=0, width=12, height=12, class_=look)
    )
    return element("svg", shape, viewBox="0 0 24 12", class_="swatch", aria_hidden="true")


MAX_POINTS = {"wide": 400, "narrow": 200}
"""Of a curve: more could not be told apart. What stands out is kept (series.thinned)."""
_MAX_FAINT_POINTS = 100
_MAX_DOTS = 40
_MAX_MARKS = 200


@dataclass(frozen=True)
class LineMark:
    """A curve; `look` is its class in the style sheet. A `faint` one stands behind the others and is not in the legend."""

    name: str
    points: Sequence[Point]
    look: str
    faint: bool = False


@dataclass(frozen=True)
class Curves:
    """A chart of curves. `level` is a value to reach, `marks` are places on the x axis where something failed.

    The x axis is one of `rounds`, which are whole numbers, or of something else.
    """

    title: Title
    lines: Sequence[LineMark]
    level: float | None = None
    marks: Sequence[float] = ()
    rounds: bool = True


def curves_figure(chart: Curves) -> Markup:
    """The chart with its legend; says where points were left out."""
    legend = [(line.name, line.look, "line") for line in chart.lines if not line.faint]
    if any(line.faint for line in chart.lines):
        legend.append(("each device", "faint", "line"))
    if chart.level is not None:
        legend.append(("target", "level", "line"))
    if chart.marks:
        legend.append(("round failed", "mark", "line"))
    most = max((len(line.points) for line in chart.lines), default=0)
    note = f"Of {most:,} points the curve has the least and the most of each stretch." if _is_thinned(chart) else ""
    return figure(chart.title, [draw_curves(chart, frame) for frame in FRAMES], legend, note)


def draw_curves(chart: Curves, frame: Frame) -> Markup:
    """The chart as SVG, at the size of `frame`."""
    levels = [] if chart.level is None else [chart.level]
    y = frame.y_axis([*(value for line in chart.lines for _, value in line.points), *levels])
    frame = frame.beside(y)
    x = frame.x_axis([*(at for line in chart.lines for at, _ in line.points), *chart.marks], whole=chart.rounds)
    parts = [axes(chart.title, frame, x, y)]
    if chart.level is not None:
        at = y.place(chart.level)
        parts.append(element("line", x1=frame.left, x2=frame.width - frame.right, y1=at, y2=at, class_="curve level"))
    if chart.marks:
        parts.append(_marks(chart.marks, x, frame))
    for line in sorted(chart.lines, key=lambda one: not one.faint):
        parts.append(_draw_line(line, x, y, frame))
    return picture(chart.title, frame, *parts)


def _draw_line(line: LineMark, x: Axis, y: Axis, frame: Frame) -> Markup:
    points = thinned(line.points, _limit(line, frame))
    places = [(x.place(at), y.place(value)) for at, value in points]
    if not places:
        return Markup()
    way = "L".join(f"{coordinate(across)},{coordinate(up)}" for across, up in places)
    path = element("path", element("title", line.name), d=f"M{way}", class_=f"curve {line.look}")
    if (line.faint and len(places) > 1) or len(places) > _MAX_DOTS:
        return path
    dots = [
        element("circle", element("title", _told(line.name, at, value)), cx=across, cy=up, r=2.5, class_=line.look)
        for (across, up), (at, value) in zip(places, points, strict=True)
    ]
    return joined(path, *dots)


def _told(name: str, at: float, value: float) -> str:
    return f"{name}, {at:.6g}: {value:.4g}"


def _marks(marks: Sequence[float], x: Axis, frame: Frame) -> Markup:
    floor = frame.height - frame.bottom
    places = sorted({round(x.place(at), 1) for at in marks})
    step = -(-len(places) // _MAX_MARKS)
    way = "".join(f"M{coordinate(at)},{coordinate(floor)}v-8" for at in places[::step])
    return element("path", element("title", "round failed"), d=way, class_="curve mark")


def _limit(line: LineMark, frame: Frame) -> int:
    return _MAX_FAINT_POINTS if line.faint else MAX_POINTS[frame.name]


def _is_thinned(chart: Curves) -> bool:
    return any(len(line.points) > _limit(line, frame) for line in chart.lines for frame in FRAMES)


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
