"""The charts of a report, drawn from arbitrary records."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedpatch.coordinator.report.charts import COLOURS, Chart, Line, png, svg
from fedpatch.coordinator.report.page import accuracy_chart, bar_charts, curves_of, make_page
from fedpatch.coordinator.report.series import TIME_UNITS, Run, thinned, unit_for
from tests.coordinator.report.report_runs import RUNS, record, run
from tests.support.examples import examples

SVG = "{http://www.w3.org/2000/svg}"
FINITE = st.floats(-1e12, 1e12)
CARDS = ("#ffffff", "#f4f6f8"), ("#14181c", "#1e242a")


def _page(*runs: Run) -> ElementTree.Element:
    """Parse the page as XML, which is stricter than HTML: a tag from unescaped text would not be closed."""
    return ElementTree.fromstring(make_page(runs, 1.78e9, "0.1.0"))


@pytest.mark.medium
@examples(4)
@given(st.lists(RUNS, min_size=1, max_size=2))
def test_any_records_give_a_well_formed_page_with_named_charts(runs):
    page = _page(*runs)
    ids = [one.get("id") for one in page.iter() if one.get("id")]
    assert len(set(ids)) == len(ids)
    charts = [one for one in page.iter("div") if one.get("class") == "chart"]
    assert len(charts) >= 4 * len([one for one in runs if one.records])
    for chart in charts:
        assert chart.get("aria-label") and chart.get("aria-describedby") in ids
        assert chart.find(f"{SVG}svg") is not None
    text = ElementTree.tostring(page, encoding="unicode")
    assert {*re.findall(r'href="#(.*?)"|url\(#(.*?)\)', text)} <= {(id, "") for id in ids} | {("", id) for id in ids}


@pytest.mark.slow
@examples(8)
@given(st.lists(RUNS, min_size=1, max_size=2))
def test_any_records_give_a_picture(runs):
    """This includes names with characters that no font has, and names whose first character makes matplotlib skip them."""
    assert Image.open(io.BytesIO(png(curves_of(runs)))).width > 500


def test_curve_goes_up_where_user_accuracy_does():
    drawn = svg(Chart("k", "t", "d", "round", [Line("mean", [(1.0, 0.1), (2.0, 0.5), (3.0, 0.7)], "c0")]))
    way = next(one for one in re.findall(r'<path d="([^"]*)"[^>]*var\(--c0\)', drawn) if one.count("L") == 2)
    corners = [tuple(map(float, corner)) for corner in re.findall(r"([\d.]+) ([\d.]+)", way)]
    assert corners == sorted(corners) and [y for _, y in corners] == sorted((y for _, y in corners), reverse=True)


def test_chart_is_drawn_to_the_same_bytes_each_time():
    chart = accuracy_chart(run(5), "k")
    assert svg(chart) == svg(chart)


def test_bar_parts_are_the_seconds_of_the_phases():
    phases = bar_charts(run(1), "k")[0]
    assert [line.points for line in phases.lines] == [[(1.0, seconds)] for seconds in (0.1, 0.2, 0.3, 4.0, 0.5, 0.6)]
    assert phases.unit == "seconds"


def test_failed_round_is_marked_and_its_accuracy_not_drawn():
    records = (record(1), record(2, outcome="failed", failure="quorum_missed"), record(3))
    chart = accuracy_chart(Run(run().info, records), "k")
    assert [x for x, _ in chart.lines[0].points] == [1.0, 3.0]
    assert chart.marks == [2.0]
    assert "round failed" in [entry.name for entry in chart.legend]
    assert svg(chart) != svg(replace(chart, marks=[]))


@pytest.mark.parametrize(
    ("most", "unit"),
    [(0.0, "seconds"), (119.0, "seconds"), (120.0, "minutes"), (7199.0, "minutes"), (7200.0, "hours"), (1e9, "hours")],
)
def test_time_axis_has_the_unit_that_gives_small_numbers(most, unit):
    assert unit_for(most, TIME_UNITS)[0] == unit


@given(st.lists(st.tuples(FINITE, FINITE), max_size=300), st.integers(4, 50))
def test_thinned_curve_keeps_ends_peaks_and_order(points, limit):
    kept = thinned(points, limit)
    assert len(kept) <= limit or len(points) <= limit
    assert kept == sorted(kept, key=points.index) or len(set(points)) < len(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        for best in (min, max):
            assert best(y for _, y in kept) == best(y for _, y in points)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_has_the_contrast_of_wcag(scheme):
    """At least 3:1 for lines and blocks, 4.5:1 for text (WCAG 2.2, 1.4.11 and 1.4.3), on the background of a figure."""
    for ground in CARDS[scheme]:
        for name in COLOURS.keys() - {"rule"}:
            least = 3.0 if name.startswith("c") else 4.5
            assert _contrast(COLOURS[name][scheme], ground) >= least, (name, ground)


def _contrast(one: str, other: str) -> float:
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
