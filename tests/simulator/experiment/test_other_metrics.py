"""Simulations of a task whose metric is an error: less is better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpatch.shared.errors import ConfigError, DataError, UpdateRefused
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.cli import _table
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.plots import draw_outcome
from fedpatch.simulator.experiment.progress import CurveProgress
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Outcome, Point, Study
from tests.simulator import regression_task
from tests.simulator.regression_task import REFERENCE, TASK


def _study(**changes: Any) -> Study:
    terms: dict[str, Any] = {
        "task": TASK,
        "task_ref": REFERENCE,
        "clients": 6,
        "strategy": "fedavg",
        "rounds": 12,
        "batch_size": 8,
    }
    return make_study(**terms | changes)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return simulate(_study())


def test_the_error_becomes_smaller_and_the_worst_is_the_greatest(outcome):
    assert outcome.points[-1].user_accuracy < outcome.points[0].user_accuracy / 2
    for point in outcome.points:
        assert point.user_accuracy < point.p10 <= point.lowest


def test_simulation_ends_at_the_target_error(outcome):
    curve = [point.user_accuracy for point in outcome.points]
    target = min(curve[:6])
    ended = simulate(_study(target_ua=target))
    first = next(number for number, error in enumerate(curve) if error <= target)
    assert (ended.rounds_to_target, len(ended.points)) == (first, first + 1)
    assert outcome.rounds_to_target is None


def test_the_study_remembers_the_metric():
    study = _study(target_ua=3.5)
    assert Study.from_dict(study.to_dict()) == study
    assert (study.to_dict()["metric"], study.to_dict()["metric_goal"]) == ("MAE", "min")
    accuracy = make_study(task=find_task("digits"), task_ref="digits", clients=5, strategy="fedavg")
    assert not {"metric", "metric_goal"} & accuracy.to_dict().keys()
    assert Study.from_dict(accuracy.to_dict()) == accuracy


def test_a_target_is_a_value_of_the_metric():
    with pytest.raises(ConfigError, match=r"--target-ua: 3\.5 is not a fraction from 0 to 1"):
        make_study(task=find_task("digits"), task_ref="digits", clients=5, strategy="fedavg", target_ua=3.5)
    with pytest.raises(ConfigError, match="--target-ua: inf is not a number from -1e"):
        _study(target_ua=float("inf"))


def test_a_metric_beyond_its_own_range_is_refused(monkeypatch):
    monkeypatch.setattr(regression_task, "TASK", replace(TASK, metric_range=(0.0, 0.5)))
    with pytest.raises(DataError, match=r"client \d; `metric` must return a number from 0 to 0\.5"):
        simulate(_study())


def test_a_metric_that_leaves_its_range_by_training_is_divergence(monkeypatch):
    monkeypatch.setattr(regression_task, "TASK", replace(TASK, metric_range=(0.0, 20.0)))
    with pytest.raises(UpdateRefused, match=r"from 0 to 20; before training it did: try a smaller learning rate"):
        simulate(_study(learning_rate=3.0, steps=1))


def test_people_read_the_metrics_name(outcome):
    assert CurveProgress(outcome.study).add(Point(0, 0.5, 0.6, 0.7, 6, None, 1.0)) == "MAE 0.500"
    rows = [str(cell) for column in _table(outcome).columns for cell in column.cells]
    assert "MAE" in rows and "90th percentile" in rows and "highest" in rows
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install 'fedpatch[simulator]')")
    assert draw_outcome(outcome).axes[0].get_ylabel() == "MAE"
