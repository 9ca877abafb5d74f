"""The paper's figures: their data and their picture files."""

from __future__ import annotations

import math
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.paper.comparison import Comparison
from studies.paper.curves import mean_and_confidence, smooth, step_positions
from studies.paper.experiments import cells_of
from studies.paper.figures import draw_fig3, draw_fig4, draw_fig5
from tests.studies.fake_simulation import diverged_result, result

SERIES = st.lists(st.floats(0, 1), min_size=1, max_size=60)
STEPS = 4


def rising(rounds: int) -> list[float]:
    """User accuracy that rises within a round and drops when it ends."""
    return [0.5 + 0.01 * t + 0.02 * step for t in range(rounds) for step in range(STEPS + 1)]


def picture_text(svg: Path) -> str:
    """Check the SVG of a picture; return its text. Its letters are shapes; comments have the words."""
    assert svg.suffix == ".svg"
    text = svg.read_text("utf-8")
    assert ET.fromstring(text).tag.endswith("svg")
    return text


@given(SERIES, st.integers(1, 80))
def test_smoothing_stays_between_the_values_that_it_averages(values, width):
    smoothed = smooth(values, width)
    assert len(smoothed) == len(values)
    assert min(values) - 1e-9 <= smoothed.min() <= smoothed.max() <= max(values) + 1e-9


def test_smoothing_is_the_mean_over_a_window():
    assert smooth([0, 3, 6, 3, 0], 3).tolist() == [1.5, 3, 4, 3, 1.5]
    assert smooth([0, 3, 6], 1).tolist() == [0, 3, 6]
    assert smooth([0, 3, 6], 99).tolist() == [1.5, 3, 4.5]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_confidence_is_students(values):
    """Half the interval's width is the quantile of Student's t times the standard error."""
    mean, half = mean_and_confidence([[one] for one in values])
    quantiles = {2: 12.706, 5: 2.776, 16: 2.131}
    assert mean[0] == pytest.approx(statistics.fmean(values))
    assert half is not None
    if quantile := quantiles.get(len(values)):
        assert half[0] == pytest.approx(quantile * statistics.stdev(values) / math.sqrt(len(values)), abs=1e-12)


@pytest.mark.parametrize(("curves", "quantile"), [(17, 2.120), (31, 2.042), (121, 1.980)])
def test_quantile_of_student_goes_on_beyond_the_table(curves, quantile):
    values = [[float(number % 2)] for number in range(curves)]
    _, half = mean_and_confidence(values)
    assert half is not None
    assert half[0] == pytest.approx(quantile * statistics.stdev(one for (one,) in values) / math.sqrt(curves), rel=4e-4)


def test_one_curve_has_no_confidence():
    mean, half = mean_and_confidence([[0.25, 0.5]])
    assert (mean.tolist(), half) == ([0.25, 0.5], None)


def test_aggregation_takes_no_step():
    """The value after aggregation has the position of the previous round's last step, so a drop is a vertical line."""
    assert step_positions(7, 2).tolist() == [0, 1, 2, 2, 3, 4, 4]


@pytest.mark.medium
def test_fig_5_is_drawn_from_what_there_is(tmp_path: Path):
    comparisons = [Comparison(cell) for cell in cells_of("fig5")]
    for place in (0, 1):
        cell = comparisons[place].cell
        found = (*(result(cell, seed, None) for seed in range(2)), diverged_result(cell, 2, 3))
        comparisons[place] = Comparison(cell, found)
    text = picture_text(draw_fig5(comparisons, tmp_path / "new" / "fig5"))
    for words in ("W = 200, C = 0.5", "MNIST", "user accuracy (%)", "round", "not computed yet", "FL(FedAvg)"):
        assert f"<!-- {words} -->" in text
    assert "pFedMe" not in text
    assert "CIFAR-10" not in text


@pytest.mark.medium
def test_fig_4_shows_three_pairs_of_curves(tmp_path: Path):
    curves = {"train": rising(12), "test": rising(12)}
    measured = {"policies": dict.fromkeys(("none", "stats", "affine", "all"), curves), "steps_per_round": STEPS}
    text = picture_text(draw_fig4([measured], tmp_path / "fig4"))
    for words in ("local step", "FL(FedAvg), train", "MTFL(FedAvg), test", "test, not smoothed"):
        assert f"<!-- {words} -->" in text
    assert text.count("private") == 3


@pytest.mark.medium
def test_fig_4_is_drawn_of_few_rounds_too(tmp_path: Path):
    curves = {"train": rising(1), "test": rising(1)}
    measured = {"policies": dict.fromkeys(("none", "stats", "affine", "all"), curves), "steps_per_round": STEPS}
    picture_text(draw_fig4([measured], tmp_path / "fig4"))


def bands(svg: Path) -> int:
    """Number of bands in a picture."""
    return svg.read_text("utf-8").count("FillBetweenPolyCollection")


@pytest.mark.medium
def test_fig_4_with_several_seeds_has_a_band_for_each_line(tmp_path: Path):
    def seed(shift: float) -> dict[str, Any]:
        curves = {key: [one + shift for one in rising(12)] for key in ("train", "test")}
        return {"policies": dict.fromkeys(("none", "stats", "affine", "all"), curves), "steps_per_round": STEPS}

    one = draw_fig4([seed(0)], tmp_path / "one")
    several = draw_fig4([seed(0), seed(0.1)], tmp_path / "several")
    assert bands(one) == 0
    assert bands(several) == 3 * 4 + 2


@pytest.mark.medium
def test_fig_3_has_two_panels(tmp_path: Path):
    names = [f"{what}_shift_{side}" for what in ("mean", "var") for side in ("private", "federated")]
    shares = ("share_holding_mean", "share_holding_var")
    layers = [
        {"layer": layer, "round": t, **{name: 1 / t for name in names}, **dict.fromkeys(shares, 0.75)}
        for layer in ("bn1", "bn2")
        for t in (3, 1, 2)
    ]
    measured = {"ind": rising(3), "fl": rising(3), "mtfl": rising(3), "steps_per_round": STEPS, "layers": layers}
    paths = draw_fig3([measured], tmp_path / "fig3")
    assert [path.name for path in paths] == ["fig3-a.svg", "fig3-b.svg"]
    assert "<!-- independent -->" in picture_text(paths[0])
    panel_b = picture_text(paths[1])
    assert all(f"<!-- {layer}: shift of the mean -->" in panel_b for layer in ("bn1", "bn2"))
