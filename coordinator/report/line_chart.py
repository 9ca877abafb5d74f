"""Curves: user accuracy over rounds or over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.report.chart import FRAMES, Frame, Title, axes, figure, picture
from coordinator.report.markup import Markup, coordinate, element, joined
from coordinator.report.scales import Axis
from coordinator.report.series import Point, thinned

MAX_POINTS = {"wide": 400, "narrow": 200}
"""Of a curve: more could not be told apart. What stands out is kept (series.thinned)."""
_MAX_FAINT_POINTS = 100
_MAX_DOTS = 40
_MAX_MARKS = 200


@dataclass(frozen=True)
class Line:
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
    lines: Sequence[Line]
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


def _draw_line(line: Line, x: Axis, y: Axis, frame: Frame) -> Markup:
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


def _limit(line: Line, frame: Frame) -> int:
    return _MAX_FAINT_POINTS if line.faint else MAX_POINTS[frame.name]


def _is_thinned(chart: Curves) -> bool:
    return any(len(line.points) > _limit(line, frame) for line in chart.lines for frame in FRAMES)
