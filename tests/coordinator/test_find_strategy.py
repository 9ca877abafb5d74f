"""Strategies of users: found as module:attribute or by an entry point, checked, and run like built-in strategies."""

from __future__ import annotations

import sys

import pytest

from fedpatch.coordinator import strategies
from fedpatch.coordinator.find_strategy import STRATEGIES, find_strategy, rate_of, strategy_for
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.named_plugins import BrokenPlugin
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from tests.support.paths import ROOT

MODULE = """
from dataclasses import dataclass, replace
from fedpatch import Strategy

@dataclass(frozen=True)
class HalfStep(Strategy):
    name = "half-step"
    description = "server half of the way to the mean"

    def finish(self, state, mean, schema):
        after = super().finish(state, mean, schema)
        halves = {name: ((state.tensors[name] + mean[name]) / 2).astype(mean[name].dtype) for name in mean}
        return replace(after, tensors=halves)

class Loud(HalfStep):
    name = "Loud"

class Momentous(HalfStep):
    name, moments = "momentous", ("exp_avg",)

class Odd(HalfStep):
    name, client_optimizer = "odd", "rmsprop"

class Sideways(HalfStep):
    name, client_optimizer, moments = "sideways", "adam", ("velocity",)

@dataclass(frozen=True)
class Unset(HalfStep):
    factor: float

NUMBER = 7
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """The current directory, which has half_step.py."""
    (tmp_path / "half_step.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("half_step", None)


def test_strategy_of_a_file_is_found_as_module_and_attribute(workdir):
    assert find_strategy("half_step:HalfStep").name == "half-step"


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("half_step:Absent", r"no attribute 'Absent' \(there: "),
        ("half_step:NUMBER", "'NUMBER' is of type int, not a subclass of fedpatch.Strategy that sets name"),
        ("half_step:Loud", "its name 'Loud' is not allowed"),
        ("half_step:Unset", "its field factor has no default; give it one"),
        ("half_step:Odd", "its client_optimizer is 'rmsprop'; devices have sgd and adam"),
        ("half_step:Momentous", "it shares moments, which sgd does not have"),
        ("half_step:Sideways", "its moments have 'velocity'"),
        ("nowhere:Strategy", "module 'nowhere' cannot be imported"),
        ("half step", "unknown strategy 'half step'"),
    ],
)
def test_strategy_that_cannot_be_used_is_refused_with_the_reason(workdir, ref, message):
    with pytest.raises(UsageError, match=message):
        find_strategy(ref)
    assert "strategy" in [problem[0] for problem in RunSettings(strategy=ref).check()]


def test_server_learning_rate_is_refused_by_a_strategy_without_server_optimizer(workdir):
    with pytest.raises(UsageError, match="'half_step:HalfStep' has no server optimizer"):
        find_strategy("half_step:HalfStep", 0.5)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package with a strategy under a name."""

    def install(name: str) -> None:
        info = tmp_path / "other-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[fedpatch.strategies]\n{name} = half_step_package:HalfStep\n")
        (tmp_path / "half_step_package.py").write_text(MODULE)
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("half_step_package", None)


def test_strategy_of_another_package_is_listed_and_found_by_name(install):
    install("half-step")
    assert find_strategy("half-step").description == "server half of the way to the mean"
    assert "half-step" in [one.name for one in STRATEGIES.installed()]


@pytest.mark.parametrize(("name", "problem"), [("half", "is named 'half-step'"), ("fedavg", "more than once")])
def test_package_with_another_name_or_a_name_of_fedpatch_is_listed_with_its_problem(install, name, problem):
    install(name)
    (broken,) = [one for one in STRATEGIES.installed() if isinstance(one, BrokenPlugin)]
    assert broken.name == name
    assert problem in broken.problem


def test_rates_of_a_task_serve_the_strategies_that_are_like_its_own():
    digits = find_task("digits")
    assert rate_of(digits.learning_rates, find_strategy("fedyogi")) == digits.learning_rates["fedadam"]
    assert rate_of(digits.learning_rates, find_strategy("fedavgm")) == digits.learning_rates["fedavg"]
    assert rate_of({}, find_strategy("fedavg")) is None
    rates = [getattr(strategy_for("fedyogi", digits, chosen), "server_learning_rate", None) for chosen in (None, 0.5)]
    assert rates == [digits.server_learning_rates["fedadam"], 0.5]


def test_simulation_with_half_steps_begins_as_fedavg_and_learns_less(workdir):
    digits = find_task("digits")
    accuracies = {}
    for ref in ("fedavg", "half_step:HalfStep"):
        study = make_study(task=digits, task_ref="digits", clients=4, strategy=ref, rounds=2)
        accuracies[ref] = [point.user_accuracy for point in simulate(study, workers=1, device="cpu").points]
    assert accuracies["fedavg"][0] == accuracies["half_step:HalfStep"][0]
    assert accuracies["fedavg"][-1] > accuracies["half_step:HalfStep"][-1]


def test_each_strategy_of_fedpatch_is_in_the_list_of_strategies_and_in_the_table_of_its_room():
    """A new strategy has words for users and for developers."""
    page = (ROOT / "docs/how-to/own-strategy.md").read_text("utf-8")
    listed = page.partition("## Strategies that are there")[2].partition("\n## ")[0]
    table = strategies.__doc__ or ""
    assert [name for name in STRATEGIES.own if f"`{name}`" not in listed or f"\n    {name} " not in table] == []
