"""Charts of a report, drawn by matplotlib as SVG for the page and as PNG.

A chart holds numbers only: names of devices and runs are in the page's own legend, which jinja2 escapes. In the SVG, each
colour is a variable of the page's style sheet, so that a chart follows the light or dark scheme.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure  # without pyplot, which would keep every figure
from matplotlib.ticker import MaxNLocator

from fedpatch.coordinator.report.series import Point, plain_text, thinned

COLOURS = {
    "ink": ("#1b1f23", "#e8ebee"),
    "soft": ("#545b62", "#a9b1b8"),
    "rule": ("#d3d9de", "#39424b"),
    # The colours of Okabe and Ito, distinct for any colour vision, adapted so that each has a contrast of 3:1.
    "c0": ("#0067a8", "#5ab4f0"),
    "c1": ("#c25100", "#ff9a4d"),
    "c2": ("#007a5a", "#3ccb9f"),
    "c3": ("#a8428a", "#e58cc8"),
    "c4": ("#8a6a00", "#e6c53c"),
    "c5": ("#3a7ca5", "#8fd0f5"),
}
"""Colours by their name in the style sheet, each for a light and for a dark page."""

MAX_POINTS = 400
"""Points of a curve at most; a reader could not distinguish more."""
_MAX_FAINT_POINTS = 100
_MAX_DOTS = 40
_MAX_MARKS = 200
_INCHES = (5.0, 2.8)  # then a number of an axis is 9 pixels high on a phone, and 18 on a wide screen
_DOTS_PER_INCH = 150

_STYLE: Any = {
    "axes.edgecolor": COLOURS["rule"][0],
    "axes.labelcolor": COLOURS["soft"][0],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib's own; with the default each text of an SVG names ten fonts
    "font.size": 10,
    "legend.fontsize": 8,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a run's name may hold "$"
    "xtick.color": COLOURS["soft"][0],
    "ytick.color": COLOURS["soft"][0],
}


@dataclass(frozen=True)
class Line:
    """A curve, or one part of stacked bars.

    Attributes:
        name: Its entry in the legend.
        points: Finite (x, y), with x in order.
        colour: A key of COLOURS.
        dashes: Lengths of dash and gap in points; empty for a solid line.
        faint: Thin, behind the other curves and without an entry of its own in the legend.
    """

    name: str
    points: Sequence[Point]
    colour: str
    dashes: tuple[float, ...] = ()
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """One chart and its words.

    Attributes:
        key: Its id within the page, which must be unique there.
        title: Its heading and accessible name.
        description: One or two sentences for readers who do not see it.
        x_words: Label of the x axis.
        lines: Its curves, or the parts of its bars from the bottom up.
        unit: Unit of the y axis, "" for none.
        level: A value to reach, drawn as a line.
        marks: Places on the x axis where a round failed.
        bars_end: For stacked bars, the last round of the last bar; None for curves.
        whole: Whether x counts rounds.

    Example:
        >>> Chart("ua", "Accuracy by round", "It rose.", "round", [Line("mean", [(1, 0.5), (2, 0.7)], "c0")]).note
        ''
    """

    key: str
    title: str
    description: str
    x_words: str
    lines: Sequence[Line]
    unit: str = ""
    level: float | None = None
    marks: Sequence[float] = ()
    bars_end: float | None = None
    whole: bool = True
    bars_note: str = ""

    @property
    def legend(self) -> list[Line]:
        """One entry for each style of line in the chart; all faint curves share one entry."""
        found = [line for line in self.lines if not line.faint]
        if len(found) < len(self.lines):
            found.append(Line("each device", (), "soft"))
        if self.level is not None:
            found.append(Line("target", (), "ink", (4, 4)))
        if self.marks:
            found.append(Line("round failed", (), "c1", (2, 20)))
        return found

    @property
    def note(self) -> str:
        """A sentence on points that the chart leaves out, or ""."""
        if self.bars_end is None and any(len(line.points) > _limit(line) for line in self.lines):
            most = max(len(line.points) for line in self.lines)
            return f"Of {most:,} points the curve has the least and the most of each stretch."
        return self.bars_note


def svg(chart: Chart) -> Markup:
    """The chart as an inline SVG element: no script, no address; its only text is numbers and the label of the x axis."""
    drawn = _figure([chart], "svg").decode()
    drawn = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", drawn[drawn.index("<svg") :], flags=re.S
    )
    # matplotlib restarts the numbers of its ids in each figure; within one page ids must differ.
    drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{chart.key}-", drawn)
    for name, (light, _) in COLOURS.items():
        drawn = drawn.replace(light, f"var(--{name})")
    return Markup(re.sub(r"\n\s*", "\n", drawn))  # nosec B704: no text of a device or a person is in it


def png(charts: Sequence[Chart]) -> bytes:
    """Charts of curves, none of them faint, below each other as one PNG, each with its title and legend."""
    return _figure(charts, "png")


def _figure(charts: Sequence[Chart], form: str) -> bytes:
    file = io.BytesIO()
    style = {**_STYLE, "svg.hashsalt": charts[0].key, "savefig.transparent": form == "svg"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # of a name in a script without a font
        figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(charts)), layout="constrained")
        for axes, chart in zip(figure.subplots(len(charts), squeeze=False).flat, charts, strict=True):
            (_draw_curves if chart.bars_end is None else _draw_bars)(axes, chart)
            _label(axes, chart)
            if form == "png":
                _name(axes, chart)
        figure.savefig(file, format=form, dpi=_DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _label(axes: Any, chart: Chart) -> None:
    axes.set_xlabel(chart.x_words)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=chart.whole))
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(axis="y", color=COLOURS["rule"][0], linewidth=0.7)
    axes.set_axisbelow(True)


def _name(axes: Any, chart: Chart) -> None:
    """Write title, unit and legend, which the page has in HTML."""
    axes.set_title(plain_text(chart.title), fontsize=10)
    axes.set_ylabel(chart.unit)
    if axes.lines:
        # matplotlib leaves out a name that begins with "_".
        axes.legend(axes.lines, [f" {plain_text(line.name)}" for line in chart.legend])


def _draw_curves(axes: Any, chart: Chart) -> None:
    for line in chart.lines:
        points = thinned(line.points, _limit(line))
        dotted = len(points) <= (1 if line.faint else _MAX_DOTS)
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=COLOURS[line.colour][0],
            linewidth=0.7 if line.faint else 1.5,
            linestyle=(0, line.dashes) if line.dashes else "-",
            alpha=0.65 if line.faint else None,
            zorder=1.5 if line.faint else 2,
            marker="o" if dotted else None,
            markersize=3,
        )
    if chart.level is not None:
        axes.axhline(chart.level, color=COLOURS["ink"][0], linewidth=0.8, linestyle=(0, (4, 4)))
    if chart.marks:
        marks = chart.marks[:: -(-len(chart.marks) // _MAX_MARKS)]
        at_foot = axes.get_xaxis_transform()
        axes.plot(marks, [0.03] * len(marks), "|", color=COLOURS["c1"][0], markersize=7, transform=at_foot)


def _draw_bars(axes: Any, chart: Chart) -> None:
    starts = [x - 0.5 for x, _ in chart.lines[0].points]
    floor = [0.0] * len(starts)
    for line in chart.lines:
        top = [low + height for low, (_, height) in zip(floor, line.points, strict=True)]
        colour = COLOURS[line.colour][0]
        axes.stairs(top, [*starts, (chart.bars_end or 0.0) + 0.5], baseline=floor, fill=True, color=colour)
        floor = top
    axes.set_ylim(bottom=0.0)


def _limit(line: Line) -> int:
    return _MAX_FAINT_POINTS if line.faint else MAX_POINTS
