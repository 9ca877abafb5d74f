"""The policies compared with learning alone, and the recommended policy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.simulator.cli import app
from fedpatch.simulator.comparison.recommend import ALONE, Arm, recommend, rows


def arm(name, *values):
    return Arm(name, {(0, client): value for client, value in enumerate(values)}, 5, 100)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(["max", "min"]))
@example([0.8, 0.2, 0.4], "max")
@example([0.2, 0.1, 0.9], "min")
def test_learning_alone_reaches_its_own_user_accuracy(values, goal):
    """A curve has the mean by NumPy, which can differ in the last bit."""
    curve = [1.0 - (goal == "max"), float(np.mean(values))]
    [row] = rows([replace(arm(ALONE, *values), curves={0: curve})], MetricTerms("f1", goal))
    assert row.rounds_to_target is not None


def test_rows_compare_client_by_client():
    table = rows([arm("affine", 0.5, 0.9, 0.8), arm(ALONE, 0.6, 0.6, 0.8)], MetricTerms())
    assert table[0].mean == pytest.approx(2.2 / 3)
    assert [row.gaining for row in table] == [pytest.approx(1 / 3), None]
    assert table[0].to_dict()["gain_median"] == pytest.approx(0.0)
    assert table[0].to_dict()["gain_p10"] == pytest.approx(-0.08)


def test_a_policy_that_is_best_beyond_the_noise_is_recommended():
    arms = [arm("affine", 0.5, 0.51, 0.52), arm("all", 0.9, 0.92, 0.91), arm(ALONE, 0.7, 0.71, 0.72)]
    choice, sentence = recommend(arms, MetricTerms())
    assert choice == "all"
    assert "take --private all" in sentence
    assert "100% of the clients gain" in sentence


def test_learning_alone_is_recommended_where_no_policy_is_better():
    choice, sentence = recommend([arm("affine", 0.5, 0.6), arm(ALONE, 0.8, 0.9)], MetricTerms())
    assert choice == ALONE
    assert "federation does not pay" in sentence


ALONE_OF_SIX = arm(ALONE, *[0.7] * 6)
SURE = arm("none", 0.731, 0.733, 0.732, 0.731, 0.733, 0.732)
NOISY = arm("all", 0.84, 0.64, 0.80, 0.66, 0.81, 0.66)
"""NOISY has a mean gain of +0.035, which is within the noise; SURE has about +0.032 for every client."""


def test_recommend_where_a_noisy_policy_is_within_the_noise_of_all_takes_the_one_that_beats_learning_alone():
    """Equality within the noise is not transitive: a noisy policy equals a better policy, and also learning alone."""
    choice, sentence = recommend([SURE, NOISY, ALONE_OF_SIX], MetricTerms())
    assert choice == "none"
    assert "+0.032 over learning alone, and 100% of the clients gain" in sentence


def test_recommend_finds_no_better_policy_within_the_noise_of_training_alone():
    choice, sentence = recommend([NOISY, ALONE_OF_SIX], MetricTerms())
    assert choice == ALONE
    assert sentence.startswith("no method is better than learning alone beyond the noise")
    assert "federation does not pay" in sentence


def test_of_policies_that_are_equal_the_most_private_is_recommended():
    arms = [arm("none", 0.9, 0.8), arm("all", 0.8, 0.9), arm(ALONE, 0.1, 0.2)]
    assert recommend(arms, MetricTerms())[0] == "all"


def test_of_an_error_the_lowest_is_recommended():
    arms = [arm("none", 3.0, 3.1), arm("stats", 1.0, 1.1), arm(ALONE, 2.0, 2.1)]
    assert recommend(arms, MetricTerms("mse", "min"))[0] == "stats"


def test_compare_on_digits_prints_every_arm_and_a_recommendation():
    terms = ["compare", "--clients", "2", "--rounds", "2", "--workers", "1", "--json"]
    done = CliRunner().invoke(app, terms)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout.splitlines()[-1])
    assert [row["policy"] for row in document["rows"]] == ["none", "stats", "affine", "all", ALONE]
    assert document["choice"] in ("none", "stats", "affine", "all", ALONE)
    assert document["rows"][-1]["bytes"] == 0 < document["rows"][0]["bytes"]


def _plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 10))


def _no_model() -> nn.Module:
    raise ValueError("no layers given")


NO_MODEL = replace(DIGITS, build_model=_no_model)


def test_compare_reports_a_raising_build_model_as_a_task_failure():
    task = "tests.simulator.comparison.test_compare:NO_MODEL"
    done = CliRunner().invoke(app, ["compare", "--task", task, "--clients", "2", "--rounds", "1", "--workers", "1"])
    printed = done.stderr + str(done.exception)
    assert f"task '{task}' failed in the simulation: ValueError: no layers given" in printed, (
        done.output,
        done.exception,
    )


NO_BATCH_NORM = replace(DIGITS, build_model=_plain_model)


def test_compare_of_a_model_without_batch_norm_leaves_policies_out():
    task = "tests.simulator.comparison.test_compare:NO_BATCH_NORM"
    terms = ["compare", "--task", task, "--clients", "2", "--rounds", "1", "--workers", "1"]
    done = CliRunner().invoke(app, terms)
    assert done.exit_code == 0, (done.output, done.exception)
    for policy in ("stats", "affine", "all"):
        assert f"{policy}: left out: patch policy {policy}: the model has no batch norm" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:3]] == ["none", ALONE]


NO_RATES = replace(DIGITS, learning_rates={})


def test_compare_with_learning_rate_needs_no_rates_of_the_task():
    task = "tests.simulator.comparison.test_compare:NO_RATES"
    terms = ["compare", "--task", task, "--clients", "2", "--rounds", "1", "--workers", "1", "--learning-rate", "0.1"]
    done = CliRunner().invoke(app, [*terms, "--methods", "none", "--strategy", "fedavg"])
    assert done.exit_code == 0, (done.output, done.exception)


@pytest.mark.parametrize("target_ua", ["97", "-0.1", "nan"])
def test_compare_refuses_a_target_out_of_the_range_of_the_metric_before_it_computes(target_ua):
    done = CliRunner().invoke(app, ["compare", "--target-ua", target_ua])
    assert "not a fraction from 0 to 1" in str(done.exception)
    assert "rounds of" not in done.stderr


def test_compare_refuses_two_tasks_of_one_name_in_one_folder_before_it_computes(tmp_path):
    pytest.importorskip("matplotlib")
    own = "tests.simulator.comparison.test_compare:NO_RATES"
    done = CliRunner().invoke(
        app, ["compare", "--task", "digits", "--task", own, "--learning-rate", "0.1", "--out", str(tmp_path)]
    )
    assert "another task has the name 'digits' too" in str(done.exception)
    assert "rounds of" not in done.stderr
    assert not list(tmp_path.iterdir())
