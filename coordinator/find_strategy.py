"""The strategies of fedpatch and of other packages, by name.

Another package names its strategies as entry points of the group `fedpatch.strategies`; a strategy in a file of your own is
named as module:attribute. Neither changes the messages: a strategy is data for the devices (a TrainPlan) and a pure function on
the coordinator.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.coordinator.strategies.fedadagrad import FedAdagrad
from fedpatch.coordinator.strategies.fedadam import FedAdam
from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.coordinator.strategies.fedavg_adam import FedAvgAdam
from fedpatch.coordinator.strategies.fedavgm import FedAvgM
from fedpatch.coordinator.strategies.fedyogi import FedYogi
from fedpatch.coordinator.strategies.scaffold import Scaffold
from fedpatch.shared.app.named_plugins import PluginKind
from fedpatch.shared.config.fields import NAME
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.wire.plan_terms import CONTROL

ENTRY_POINT_GROUP = "fedpatch.strategies"


def _is_strategy(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Strategy) and hasattr(value, "name")


STRATEGIES: PluginKind[type[Strategy]] = PluginKind(
    "strategy",
    ENTRY_POINT_GROUP,
    _is_strategy,
    "a subclass of fedpatch.Strategy that sets name",
    lambda strategy: strategy.name,
    "STRATEGY",
    of_classes=True,
    own={one.name: one for one in (FedAvg, FedAvgAdam, FedAvgM, FedAdam, FedYogi, FedAdagrad, Scaffold)},
)
"""The strategies that are installed here. A module of another package is imported only when its strategy is found by name."""


def find_strategy(ref: str, server_learning_rate: float | None = None) -> Strategy:
    """Return the strategy of that name.

    Args:
        ref: Name of a strategy, or module:attribute of a class.
        server_learning_rate: Learning rate of the server optimizer; the strategy's own if left out.

    Raises:
        UsageError: The name is unknown, the class cannot be loaded or is not usable, or the strategy has no server optimizer
            for the learning rate.

    Example:
        >>> find_strategy("fedyogi", 0.1).server_learning_rate
        0.1
    """
    strategy: Callable[..., Strategy] = _checked(ref, STRATEGIES.find(ref))
    if server_learning_rate is None:
        return strategy()
    if "server_learning_rate" not in inspect.signature(strategy).parameters:
        raise UsageError(f"strategy {ref!r} has no server optimizer; leave the server learning rate out")
    return strategy(server_learning_rate=server_learning_rate)


def rate_of(rates: Mapping[str, float], strategy: Strategy) -> float | None:
    """Return a task's learning rate for a strategy: by its name, else by the name in its `rates_of`, else None."""
    return rates.get(strategy.name, rates.get(strategy.rates_of))


def strategy_for(ref: str, task: Task, server_learning_rate: float | None) -> Strategy:
    """Return the strategy with the given server learning rate, else the task's, else the strategy's own.

    Args:
        ref: Name of a strategy, or module:attribute of a class.
        task: The task, whose `server_learning_rates` are used.
        server_learning_rate: The rate that a user chose; None if no rate was chosen.

    Raises:
        UsageError: As `find_strategy`.
    """
    strategy = find_strategy(ref)
    return find_strategy(ref, server_learning_rate or rate_of(task.server_learning_rates, strategy))


def _checked(ref: str, strategy: type[Strategy]) -> type[Strategy]:
    """Return `strategy`. Raises UsageError for class variables that devices could not follow."""
    problem = ""
    moments = set(strategy.moments) - ({CONTROL} if strategy.client_optimizer == "sgd" else set())
    if not re.fullmatch(NAME.regex, strategy.name):
        problem = f"its name {strategy.name!r} is not allowed; use {NAME.words}"
    elif strategy.client_optimizer not in ("sgd", "adam"):
        problem = f"its client_optimizer is {strategy.client_optimizer!r}; devices have sgd and adam"
    elif unknown := sorted(moments - set(MOMENTS)):
        problem = f"its moments have {unknown[0]!r}; use a selection of {', '.join(MOMENTS)}"
    elif moments and strategy.client_optimizer != "adam":
        problem = "it shares moments, which sgd does not have; use client_optimizer adam"
    elif needed := [one.name for one in inspect.signature(strategy).parameters.values() if one.default is one.empty]:
        problem = f"its field {needed[0]} has no default; give it one"
    if problem:
        raise UsageError(f"strategy {ref!r}: {problem}")
    return strategy
