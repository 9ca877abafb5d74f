"""A run whose metric is an error: a lower value is better, and any number is valid."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.cli.tables import print_run, print_summary
from fedpatch.coordinator.observability.round_text import round_line
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_events import Aggregated
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.aggregator import requirements_of
from fedpatch.coordinator.runtime.run_preparation import prepare, run_spec
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.metric_spec import MetricTerms, metric_terms
from tests.coordinator.engines import asking, report_of
from tests.coordinator.observability.statuses import text_of, waiting

MAE = metric_terms("MAE", "min", None)
RECORD = RoundRecord(3, "aggregated", 4, 4, 0, 4, 0.31, 0.9, 0.29, metric="MAE", metric_goal="min")


def _played(target: float | None, *errors: float):
    """Return an engine after a round in which devices measured these errors."""
    names = "abcdef"[: len(errors)]
    made = asking(names, rounds=9, target_ua=target, metric=MAE)
    for device, error in zip(names, errors, strict=True):
        report_of(made, device, accuracy=error)
    made.handle(Aggregated(), 6.0)
    return made


def test_run_ends_when_the_mean_error_is_at_most_the_target():
    assert _played(0.4, 0.2, 0.6).stopped is Stopped.TARGET_UA
    assert _played(0.3, 0.2, 0.6).stopped is None
    assert _played(0.3, 0.9, 0.9).stopped is None


def test_record_has_worst_device_and_metric():
    record = _played(None, 0.2, 7.5, 0.6).records[-1]
    assert (record.user_accuracy_min, record.metric, record.metric_goal) == (7.5, "MAE", "min")
    assert RoundRecord.from_dict(record.to_dict()) == record


def test_last_line_of_a_run_counts_no_evaluate_rounds(capsys):
    """The third round measured the model, without training."""
    measured = replace(RECORD, round=4, outcome="evaluated")
    summary = RunSummary("run-1", "max_rounds", 0.31, "", [replace(RECORD, round=2), RECORD, measured])
    print_summary(summary)
    assert "all rounds done after 2 rounds, MAE 0.310" in capsys.readouterr().out
    assert repr(summary) == "<RunSummary run-1: max_rounds after 2 rounds, MAE 0.310>"


def test_output_has_the_name_of_the_metric(capsys):
    assert "MAE 0.310 (worst 0.900)" in round_line(RECORD, 9)
    assert "UA 0.310 (min 0.900)" in round_line(replace(RECORD, metric="accuracy", metric_goal="max"), 9)
    print_summary(RunSummary("run-1", "max_rounds", 0.31, "", [RECORD]))
    assert "after 1 round, MAE 0.310" in capsys.readouterr().out
    info = RunInfo("run-1", 0.0, "t", "fedavg", "all", {}, "", 1, "finished", "max_rounds", 0.31, None)
    print_run(info, [RECORD])
    assert "MAE worst" in capsys.readouterr().out
    assert any("MAE 0.310" in line for line in text_of(waiting(records=[RECORD])))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSettings:
    """Settings of a run whose metric is an error; its task is in a module in the current directory."""
    (tmp_path / "digits_by_error.py").write_text(
        "from dataclasses import replace\nfrom fedpatch.shared.tasks.bundled.digits import TASK as DIGITS\n"
        "TASK = replace(DIGITS, metric_name='MAE', metric_goal='min')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "digits_by_error", raising=False)
    return RunSettings(task="digits_by_error:TASK", target_ua=3.5)


def test_spec_and_requirements_have_the_metric_of_the_task(settings):
    prepared = prepare(settings)
    spec = run_spec("r", 1, settings, prepared, 1000)
    assert spec.metric == MAE
    assert requirements_of(prepared, spec, "", None).metric == MAE


def test_strategy_without_learning_rate_in_the_task_needs_the_option(monkeypatch: pytest.MonkeyPatch):
    slow = replace(digits.TASK, learning_rates={})
    monkeypatch.setattr("fedpatch.coordinator.runtime.run_preparation.find_task", lambda _: slow)
    with pytest.raises(UsageError, match=r"task 'digits' names no learning rate for fedavg-adam; .*--learning-rate"):
        prepare(RunSettings(task="digits"))
    assert prepare(RunSettings(task="digits", learning_rate=0.5)).plan.learning_rate == 0.5


def test_model_above_max_model_mib_is_refused_before_the_run():
    with pytest.raises(UsageError, match=r"the model and its moments may take \d+ MiB; raise max_model_mib to that"):
        prepare(RunSettings(task="mnist", max_model_mib=1))


@pytest.mark.parametrize("target", [1.01, -0.1])
def test_target_outside_the_range_of_accuracy_is_refused(target):
    with pytest.raises(UsageError, match=f"target_ua is {target}.*accuracy of task 'digits' is a fraction from 0 to 1"):
        prepare(RunSettings(task="digits", target_ua=target))
    assert digits.TASK.metric_terms == MetricTerms()
