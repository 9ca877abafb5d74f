"""The pictures of a study."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.simulator.experiment import plots
from fedpatch.simulator.experiment.plots import save
from fedpatch.simulator.spec.study import Outcome, Point, Study

STUDY = Study("digits", 4, "fedavg", "affine", "shard:{index}/{count}", 0.5, 3, 0.8, 0, 0.5, 20)
POINTS = tuple(Point(number, 0.1 + 0.25 * number, 0.1, 0.0, 4, None, 0.1) for number in range(4))


def _axes(outcome: Outcome) -> Any:
    (axes,) = plots.draw_outcome(outcome).axes
    return axes


def _labels(outcome: Outcome) -> list[str]:
    axes = _axes(outcome)
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_mean_the_tenth_percentile_and_the_lowest_are_drawn_by_completed_rounds():
    axes = _axes(Outcome(STUDY, POINTS, True))
    mean, p10, lowest, target = axes.lines
    assert list(mean.get_xdata()) == [0, 1, 2, 3]
    assert list(mean.get_ydata()) == [point.user_accuracy for point in POINTS]
    assert list(p10.get_ydata()) == [0.1] * 4
    assert list(lowest.get_ydata()) == [0.0] * 4
    assert set(target.get_ydata()) == {0.8}
    assert axes.get_title() == "digits, fedavg, private affine, 4 clients, 0.5 of them in each round"


def test_plot_marks_whether_the_target_was_reached():
    assert "target, reached after 3" in _labels(Outcome(STUDY, POINTS, True))
    assert "target, not reached" in _labels(Outcome(STUDY, POINTS[:3], True))
    without = replace(STUDY, target_ua=None)
    assert _labels(Outcome(without, POINTS, True)) == ["mean", "10th percentile", "lowest"]


def test_a_study_stopped_before_its_first_point_has_a_picture_too(tmp_path):
    svg = save(plots.draw_outcome(Outcome(STUDY, (), False)), tmp_path / "empty")
    assert ET.fromstring(svg.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_outcome_gives_the_same_picture(tmp_path):
    first, second = (save(plots.draw_outcome(Outcome(STUDY, POINTS, True)), tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_the_svg_is_whole(tmp_path):
    path = save(plots.draw_outcome(Outcome(STUDY, POINTS, True)), tmp_path / "curve")
    svg = path.read_bytes()
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert not any(line.endswith(b" ") for line in svg.splitlines())


def test_matplotlib_is_loaded_only_to_draw():
    program = (
        "import sys; from fedpatch.simulator.experiment import plots;"
        "from studies.paper import __main__, comparison, figures;"
        "plots.require_matplotlib(); print('matplotlib' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_missing_matplotlib_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'fedpatch\[simulator\]'"):
        plots.require_matplotlib()
