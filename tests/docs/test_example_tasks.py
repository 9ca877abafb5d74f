"""The examples of docs/examples: tasks whose generated data depend on number and seed, and strategies."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpatch.shared.errors import UsageError
from fedpatch.simulator.cli import app

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
TASKS = {"sensor_fleet_task": "machine:{}", "voice_commands_task": "home:{}"}


@pytest.fixture(params=TASKS)
def example(request, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(request.param).TASK, TASKS[request.param]


def data_of(example, spec, number=3):
    task, place = example
    return task.load_data(place.format(number) + spec, Path())


def test_device_gets_the_same_data_each_time_and_other_data_with_another_number_or_seed(example):
    first, again = data_of(example, ",seed=1"), data_of(example, ",seed=1")
    assert np.array_equal(first.train_x, again.train_x)
    assert np.array_equal(first.test_y, again.test_y)
    for other in (data_of(example, ",seed=2"), data_of(example, ",seed=1", number=4)):
        assert not np.array_equal(first.train_y, other.train_y)


def test_devices_of_a_fleet_have_unequal_class_mixes(example):
    classes = len(example[0].class_names)
    counts = np.array([np.bincount(data_of(example, "", n).train_y, minlength=classes) for n in range(10)])
    shares = counts / counts.sum(1, keepdims=True)
    assert (shares.max(0) - shares.min(0) > 0.2).all()


def test_spec_without_number_is_refused_with_an_example(example):
    with pytest.raises(UsageError, match="for example"):
        example[0].load_data("3", Path())


@pytest.mark.medium
@pytest.mark.parametrize("task", TASKS)
def test_published_methods_fit_the_example_and_affine_only_where_there_is_batch_norm(task, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    terms = ["compare", "--task", f"{task}:TASK", "--methods", "published,mtfl", "--strategy", "fedavg"]
    done = CliRunner().invoke(app, [*terms, "--clients", "2", "--rounds", "1", "--workers", "1", "--json"])
    assert done.exit_code == 0, done.output
    names = [row["policy"] for row in json.loads(done.stdout.splitlines()[-1])["rows"]]
    assert {"fedavg", "fedprox", "fedbn", "fedper", "fedrep", "fedbabu", "ditto", "pfedme", "independent"} <= set(names)
    assert ("mtfl" in names) == (task == "sensor_fleet_task")


@pytest.mark.parametrize("name", ["ShortVariance", "ShorterVariance", "ShortMean", "LargeEpsilon"])
def test_each_strategy_with_another_constant_of_adam_trains_another_model(monkeypatch, name):
    monkeypatch.syspath_prepend(EXAMPLES)
    losses = []
    for strategy in ("fedavg-adam", f"adam_constants:{name}"):
        terms = ["--strategy", strategy, "--clients", "2", "--rounds", "2", "--workers", "1", "--json"]
        done = CliRunner().invoke(app, terms)
        assert done.exit_code == 0, done.output
        losses.append(json.loads(done.stdout)["points"][2]["train_loss"])
    assert losses[0] != losses[1]
