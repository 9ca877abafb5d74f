"""The charts of a report, drawn from any records at all."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.report.charts import make_axis, unit_for
from fedpatch.coordinator.report.markup import Markup, element, escaped
from fedpatch.coordinator.report.page import STYLE, make_page
from fedpatch.coordinator.report.series import TIME_UNITS, Run, thinned
from tests.coordinator.report.report_runs import RUNS, record, run

SVG = "{http://www.w3.org/2000/svg}"
# Attributes that are a place or a size, by the side of the chart that limits them.
ACROSS, UP = ("x", "x1", "x2", "cx", "width"), ("y", "y1", "y2", "cy", "height")
FINITE = st.floats(-1e12, 1e12)


def _page(*runs: Run) -> ElementTree.Element:
    """As XML, which is stricter than HTML: a tag that something escaped into would not be closed."""
    return ElementTree.fromstring(make_page(runs, 1.78e9, "0.1.0"))


def _charts(page: ElementTree.Element) -> list[ElementTree.Element]:
    return [one for one in page.iter(f"{SVG}svg") if "chart" in one.get("class", "")]


def _places(chart: ElementTree.Element) -> list[tuple[float, float]]:
    """Every place in it, as (value, what is left of it before the edge)."""
    _, _, width, height = map(float, chart.get("viewBox", "").split())
    found = []
    for one in chart.iter():
        for names, edge in ((ACROSS, width), (UP, height)):
            found += [(float(one.get(name, "")), edge) for name in names if one.get(name) is not None]
        if "v-8" not in (way := one.get("d", "")):
            corners = re.findall(r"(-?[\d.]+),(-?[\d.]+)", way)
            assert way == "" or way == "M" + "L".join(f"{x},{y}" for x, y in corners)
            found += [
                (float(value), edge) for corner in corners for value, edge in zip(corner, (width, height), strict=True)
            ]
        if one.tag == f"{SVG}rect":
            assert float(one.get("x", "")) + float(one.get("width", "")) <= width + 0.2
            assert float(one.get("y", "")) + float(one.get("height", "")) <= height + 0.2
    return found


@settings(max_examples=40)
@given(st.lists(RUNS, min_size=1, max_size=3))
def test_any_records_give_a_well_formed_page_with_every_place_inside_its_chart(runs):
    """Whatever numbers and texts a registry holds; each chart has a name and a description of its own."""
    page = _page(*runs)
    charts = _charts(page)
    assert len(charts) >= 2 * len([one for one in runs if one.records])
    for chart in charts:
        assert all(0 <= value <= edge for value, edge in _places(chart))
        named = {one.get("id"): "".join(one.itertext()) for one in chart if one.get("id")}
        assert named[chart.get("aria-labelledby")] and named[chart.get("aria-describedby")]
    ids = [one.get("id") for one in page.iter() if one.get("id")]
    assert len(set(ids)) == len(ids)


def test_a_curve_goes_up_where_user_accuracy_does():
    """Up is less in SVG; right is a later round."""
    page = _page(run(5))
    curve = next(one for one in _charts(page)[0].iter() if one.get("class") == "curve mean")
    corners = [tuple(map(float, corner.split(","))) for corner in curve.get("d", "")[1:].split("L")]
    assert len(corners) == 5
    assert corners == sorted(corners) and [y for _, y in corners] == sorted((y for _, y in corners), reverse=True)


def test_the_parts_of_a_bar_stand_on_each_other_and_are_as_high_as_their_seconds():
    """Training took 4.0 of 5.7 seconds."""
    page = _page(run(1))
    chart = next(one for one in _charts(page) if "phases-wide" in one.get("aria-labelledby", ""))
    bars = [one for one in chart.iter(f"{SVG}rect")]
    ends = [(float(one.get("y", "")), float(one.get("height", ""))) for one in bars]
    assert len(ends) == 6
    assert all(low == pytest.approx(y + high, abs=0.11) for (low, _), (y, high) in itertools.pairwise(ends))
    assert ends[3][1] / sum(high for _, high in ends) == pytest.approx(4.0 / 5.7, rel=0.01)


def test_a_round_that_failed_is_marked_and_its_user_accuracy_is_not_drawn():
    """It was measured on a part of the devices."""
    records = (record(1), record(2, outcome="failed", failure="quorum_missed"), record(3))
    chart = _charts(_page(Run(run().info, records)))[0]
    ways = {one.get("class"): one.get("d", "") for one in chart.iter(f"{SVG}path")}
    assert ways["curve mark"].count("M") == 1
    assert ways["curve mean"].count(",") == 2


@given(st.lists(FINITE), st.booleans())
def test_an_axis_has_a_place_for_every_value_and_keeps_their_order(values, whole):
    """And its ticks lie on it, in order."""
    axis = make_axis(values, 10.0, 500.0, whole=whole)
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places) and all(10 <= place <= 500 for place in places)
    assert list(axis.ticks) == sorted(set(axis.ticks)) and 1 <= len(axis.ticks) <= 13
    slack = (axis.most - axis.least) * 1e-6
    assert all(axis.least - slack <= tick <= axis.most + slack for tick in axis.ticks)
    assert all(axis.words(tick) for tick in axis.ticks)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0.1, 0.95), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.9701, 0.9712), ["0.9700", "0.9705", "0.9710", "0.9715"]),
        ((3.0, 3.0), ["2.9990", "2.9995", "3.0000", "3.0005", "3.0010"]),
        ((), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.0, 4e7), ["0", "1e7", "2e7", "3e7", "4e7"]),
    ],
)
def test_the_ticks_of_an_axis_are_round_numbers(values, words):
    """With as many decimals as they need."""
    axis = make_axis(values, 0.0, 1.0)
    assert [axis.words(tick) for tick in axis.ticks] == words


@pytest.mark.parametrize(
    ("most", "unit"),
    [(0.0, "seconds"), (119.0, "seconds"), (120.0, "minutes"), (7199.0, "minutes"), (7200.0, "hours"), (1e9, "hours")],
)
def test_an_axis_has_the_unit_that_gives_small_numbers(most, unit):
    """The greatest of which there are two."""
    assert unit_for(most, TIME_UNITS)[0] == unit


@given(st.lists(st.tuples(FINITE, FINITE), max_size=300), st.integers(4, 50))
def test_a_thinned_curve_keeps_its_ends_its_peaks_and_its_order(points, limit):
    """And is no longer than asked for."""
    kept = thinned(points, limit)
    assert len(kept) <= limit or len(points) <= limit
    assert kept == sorted(kept, key=points.index) or len(set(points)) < len(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        for best in (min, max):
            assert best(y for _, y in kept) == best(y for _, y in points)


@given(st.text(), st.text())
def test_text_is_never_taken_for_markup(text, more):
    """It comes back from the parser as it was, but for what XML cannot hold."""
    parsed = ElementTree.fromstring(element("p", text, title=more, class_=None))
    told = "".join(parsed.itertext())
    assert len(told) == len(text.replace("\r\n", "\n")) and not list(parsed)
    assert set(told) - {"\ufffd"} <= set(text.replace("\r", "\n"))
    assert list(parsed.keys()) == ["title"]


def test_markup_is_not_escaped_twice():
    """Only what is not markup yet."""
    assert escaped(Markup("<b>&amp;</b>")) == "<b>&amp;</b>"
    assert element("p", element("b", "<&>"), "\x00") == "<p><b>&lt;&amp;&gt;</b>\ufffd</p>"


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_stands_out_from_the_ground(scheme):
    """3:1 for lines and blocks, 4.5:1 for text (WCAG 2.2, 1.4.11 and 1.4.3), on the ground of a figure."""
    block = re.findall(r":root\{(.*?)\}", STYLE, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--(\w+):(#\w+)", block))
    assert {"ground", "card", "ink", "soft", "link", "c0", "c6"} <= colours.keys()
    for ground in ("ground", "card"):
        for name in colours.keys() - {"ground", "card", "rule"}:
            least = 3.0 if name.startswith("c") else 4.5
            assert _contrast(colours[name], colours[ground]) >= least, (name, ground)


def _contrast(one: str, other: str) -> float:
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
