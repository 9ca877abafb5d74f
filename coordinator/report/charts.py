"""What all charts have: a frame with axes, a name and a description for those who do not see it, a legend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from coordinator.report.markup import Markup, element, joined
from coordinator.report.scales import Axis, make_axis

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
