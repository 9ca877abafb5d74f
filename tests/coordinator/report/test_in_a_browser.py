"""The report of a real run as Chromium shows it: curves, names, both colour schemes, on phones and desktops."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedpatch.coordinator.report.series import Run
from tests.coordinator.report.report_runs import record, run
from tests.support.browser import Browser, browser
from tests.support.paths import ROOT

# The first test waits for two demos and for Chromium, which take long on a busy machine.
pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

_DOCS = ROOT / "docs"
_PICTURE = _DOCS / "images" / "report.png"
# Texts that extend beyond their chart by more than a pixel, the rounding of fonts.
_OUTSIDE = """[...document.querySelectorAll('.chart svg')].filter(s => s.checkVisibility()).flatMap(s => {
  const edge = s.getBoundingClientRect();
  return [...s.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
    return b.left < edge.left - 1 || b.right > edge.right + 1 || b.top < edge.top - 1 || b.bottom > edge.bottom + 1;
  }).map(t => t.textContent);
})"""
_WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def _fedpatch(*argv: object) -> None:
    command = [sys.executable, "-m", "fedpatch", *map(str, argv)]
    subprocess.run(command, check=True, timeout=280, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def pages(chromium, tmp_path_factory) -> tuple[Path, Path]:
    """Paths of two reports: one run with real devices, and this run beside another run."""
    if find_spec("amqtt") is None or find_spec("sklearn") is None:
        pytest.skip("the demo is not installed (pip install 'fedpatch[demo]')")
    folder = tmp_path_factory.mktemp("runs")
    small = ("--devices", 2, "--rounds", 3, "--target-ua", 1)
    state = folder / "demo"
    for private in ("affine", "none"):
        _fedpatch("demo", *small, "--private", private, "--out", state)
    ids = [one.name for one in sorted((state / "coordinator" / "runs").iterdir())]
    one, both = folder / "one.html", folder / "both.html"
    _fedpatch("report", ids[0], "--state-dir", state, "--out", one)
    _fedpatch("report", *ids, "--state-dir", state, "--out", both)
    return one, both


@pytest.mark.slow
def test_page_of_a_real_run_draws_all_charts_without_errors(chromium, pages):
    chromium.requests.clear()
    for page in pages:
        chromium.open(page)
        ways = chromium.ask("[...document.querySelectorAll('.chart [id*=line2d] > path')].map(p => p.getTotalLength())")
        assert len(ways) >= 4 and min(ways) > 0
        assert chromium.ask("[...document.querySelectorAll('.chart svg')].every(s => s.querySelector('path, rect'))")
        assert chromium.ask("document.querySelector('.chart svg').getBoundingClientRect().width") > 500
    assert chromium.complaints == []
    assert chromium.requests == [page.as_uri() for page in pages]


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 360, 639, 800, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_fits_every_width_in_both_colour_schemes(chromium, pages, width, dark):
    for page in pages:
        chromium.open(page, width=width, dark=dark)
        chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        scroll, client = chromium.ask(_WIDTHS)
        assert scroll <= client
        assert chromium.ask(_OUTSIDE) == []
        ground = chromium.ask("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")


_CUT = """[...document.querySelectorAll('.scroll')].filter(s => s.checkVisibility() && s.scrollWidth > s.clientWidth)
  .map(s => s.getAttribute('aria-label'))"""


@pytest.mark.slow
def test_tables_are_whole_on_a_wide_screen_and_shaded_where_cut(chromium, pages):
    for page in pages:
        chromium.open(page, width=1600)
        chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert chromium.ask(_CUT) == []
        chromium.open(page, width=360)
        chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert chromium.ask(_CUT)
        shades = chromium.ask("getComputedStyle(document.querySelector('.scroll')).backgroundAttachment")
        assert shades == "local, local, scroll, scroll"


@pytest.mark.slow
def test_charts_tables_and_headings_have_accessible_names(chromium, pages):
    chromium.open(pages[1])
    nodes = chromium.accessible()
    images = [name for role, name in nodes if role in ("image", "img")]
    assert images.count("User accuracy by round") == 3
    assert len(images) == chromium.ask("document.querySelectorAll('figure').length")
    named = [(role, name) for role, name in nodes if role in ("image", "img", "table", "region", "figure", "heading")]
    assert all(name for _, name in named), named
    assert chromium.ask("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")[:2] == [1, 2]


@pytest.mark.slow
def test_paper_shows_everything_open_and_light(chromium, pages):
    chromium.open(pages[0], dark=True, paper=True)
    heights = chromium.ask("[...document.querySelectorAll('details > .scroll')].map(one => one.clientHeight)")
    assert len(heights) >= 2 and min(heights) > 0
    assert chromium.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    chromium.open(pages[0], dark=True)
    assert chromium.ask("document.querySelector('details > .scroll').checkVisibility()") is False


def test_long_labels_and_words_stay_inside(chromium, tmp_path):
    from fedpatch.coordinator.report.page import make_page

    word = "w" * 200
    records = tuple(
        record(
            100_000 + number,
            bytes_up=10**15,
            metric="W" * 24,
            user_accuracy=1e12 / number,
            user_accuracies={word: -1e11 * number},
            decline_reasons={word: 7},
            failures={word: 10**6},
        )
        for number in range(1, 300)
    )
    hostile = [Run(run(id=word + end, settings={word: word}).info, records) for end in "ab"]
    page = tmp_path / "long.html"
    page.write_text(make_page(hostile, 1.78e9, "0.1.0"), "utf-8")
    for width in (320, 900):
        chromium.open(page, width=width)
        chromium.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        scroll, client = chromium.ask(_WIDTHS)
        assert scroll <= client
        assert chromium.ask(_OUTSIDE) == []
    assert chromium.complaints == []


def test_documentation_has_a_picture_of_a_report(request):
    """The picture is small enough for a repository; UPDATE_DOCS=1 makes it again."""
    width, height = 900, 1330
    if "UPDATE_DOCS" in os.environ:
        chromium, pages = map(request.getfixturevalue, ("chromium", "pages"))
        chromium.open(pages[0], width=width, height=height)
        _PICTURE.write_bytes(chromium.picture())
    data = _PICTURE.read_bytes()
    assert len(data) < 150_000
    assert struct.unpack(">II", data[16:24]) == (width, height)
    assert f"(../images/{_PICTURE.name})" in (_DOCS / "how-to" / "report.md").read_text("utf-8")
