"""The optimisation strategies: LocalUpdate of the devices, and the update of the global model on the server.

A strategy is the three columns of the paper's Table 1. Its device side is data, a TrainPlan. Its server side is two pure
functions, `init` and `finish`, around the weighted mean of the round's updates (coordinator.aggregation.weighted_mean).

    strategy       LocalUpdate   GlobalModelUpdate   GlobalOptimUpdate
    fedavg         SGD           average             -
    fedadam        SGD           Adam                -
    fedavg-adam    Adam          average             average

McMahan et al. 2017 (FedAvg); Reddi et al. 2021, Algorithm 2, and Leroy et al. 2019 (FedAdam); Mills, Hu and Min 2021
(FedAvg-Adam). To add one: a subclass of Strategy, and a row of STRATEGIES.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedpatch.coordinator.aggregation.limit_settings import AggregateRule
from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.norm_clipping import References
from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.tensors.arrays import MOMENTS, Array, Schema, Tensors, moment_name
from fedpatch.shared.wire.messages import TrainPlan


@dataclass(frozen=True)
class ServerState:
    """The state of the server between two rounds. Arrays are never changed in place.

    Attributes:
        round: Number of completed rounds.
        tensors: The public global model and the moments that clients share, by name. Devices download these.
        server: The tensors of the server optimizer by name, which stay on the coordinator.
        references: Norms of earlier rounds' updates (coordinator.aggregation.norm_clipping).
        scale: In a masked run the ranges and the clip of the next round (coordinator.aggregation.masked_mean).
    """

    round: int
    tensors: dict[str, Array]
    server: dict[str, Array]
    references: References = field(default_factory=dict)
    scale: MaskedScale | None = None


@dataclass(frozen=True)
class Strategy:
    """Base class of the strategies, with FedAvg's server side. The class variables describe the training on a device.

    Each argument `schema` is that of the public model without moments.

    Example:
        >>> strategy = find_strategy("fedavg")
        >>> state = strategy.init(tensors, schema)  # doctest: +SKIP
        >>> state = strategy.finish(state, mean, schema)  # doctest: +SKIP
    """

    name: ClassVar[str]
    description: ClassVar[str]
    client_optimizer: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ()
    beta_1: ClassVar[float] = 0.9
    beta_2: ClassVar[float] = 0.999
    epsilon: ClassVar[float] = 1e-7

    def plan(self, learning_rate: float, batch_size: int, epochs: int, steps: int, seed: int) -> TrainPlan:
        """Return LocalUpdate as data.

        Args:
            learning_rate: Learning rate of the client optimizer.
            batch_size: Examples in a batch.
            epochs: Passes over the local data.
            steps: Training steps at most; 0 for no limit.
            seed: Seed of the order of the examples.
        """
        return TrainPlan(
            client_optimizer=self.client_optimizer,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            moments=self.moments,
            seed=seed,
        )

    def travelling(self, schema: Schema) -> Schema:
        """Return the schema of the tensors that travel each round: the public model and the moments that clients share."""
        return schema.with_moments(self.moments)

    def optimizer_schema(self, schema: Schema) -> Schema:
        """Return the schema of `ServerState.server`."""
        return Schema(())

    def init(self, tensors: Tensors, schema: Schema) -> ServerState:
        """Return the state before the first round, from the initial public model; all moments are zero."""
        schema.check(tensors)
        shared = zeros(self.travelling(schema)) | dict(tensors)
        return ServerState(0, shared, zeros(self.optimizer_schema(schema)))

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """Return the state after a round.

        Args:
            state: The state before the round, which is not changed.
            mean: The weighted mean of the round's updates.
            schema: Schema of the public model.
        """
        self.travelling(schema).check(mean)
        return replace(state, round=state.round + 1, tensors=dict(mean))


@dataclass(frozen=True)
class FedAvg(Strategy):
    """Clients run SGD, the server takes the mean."""

    name = "fedavg"
    description = "clients SGD, server mean (McMahan et al. 2017)"


@dataclass(frozen=True)
class FedAvgAdam(Strategy):
    """Clients run Adam from shared moments, the server takes the mean of the model, both moments and the step count.

    Three times the bytes of FedAvg, far fewer rounds (paper, section 3.3).
    """

    name = "fedavg-adam"
    description = "clients Adam with shared moments, server mean of model and moments (Mills et al. 2021)"
    client_optimizer = "adam"
    moments = MOMENTS


@dataclass(frozen=True)
class FedAdam(Strategy):
    """Clients run SGD, the server runs Adam on the pseudo-gradient delta = Omega - mean, without bias correction.

    Adam updates the trained tensors only. Statistics and buffers are averaged: Adam would make a variance negative.
    """

    name = "fedadam"
    description = "clients SGD, server Adam on the mean difference (Reddi et al. 2021)"

    server_learning_rate: float = 0.01
    server_beta_1: float = 0.9
    server_beta_2: float = 0.999
    server_epsilon: float = 1e-4

    def __post_init__(self) -> None:
        if not (math.isfinite(self.server_learning_rate) and self.server_learning_rate > 0):
            raise UsageError(f"{self.name}: server learning rate {self.server_learning_rate} must be a number above 0")

    def optimizer_schema(self, schema: Schema) -> Schema:
        """Return the schema of the first and second moments of all trainable tensors."""
        both = schema.with_moments(("exp_avg", "exp_avg_sq"))
        return both.subset(set(both.names) - set(schema.names))

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """Return the state after one step of the server optimizer (Reddi et al. 2021, Algorithm 2, FedAdam).

        Args:
            state: The state before the round, which is not changed.
            mean: The weighted mean of the round's updates.
            schema: Schema of the public model.
        """
        averaged = super().finish(state, mean, schema)
        tensors, server = dict(averaged.tensors), dict(state.server)
        for spec in schema.specs:
            if not spec.trainable:
                continue
            first, second = moment_name(spec.name, "exp_avg"), moment_name(spec.name, "exp_avg_sq")
            omega = state.tensors[spec.name].astype(np.float64)
            delta = omega - mean[spec.name]
            m = self.server_beta_1 * state.server[first] + (1 - self.server_beta_1) * delta
            v = self.server_beta_2 * state.server[second] + (1 - self.server_beta_2) * delta**2
            step = self.server_learning_rate * m / (np.sqrt(v) + self.server_epsilon)
            tensors[spec.name] = np.asarray(omega - step, spec.dtype)
            server[first], server[second] = np.asarray(m, spec.dtype), np.asarray(v, spec.dtype)
        return replace(averaged, tensors=tensors, server=server)


STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in (FedAvg, FedAvgAdam, FedAdam)}


def find_strategy(name: str, server_learning_rate: float | None = None) -> Strategy:
    """Return the strategy of that name.

    Args:
        name: A key of STRATEGIES.
        server_learning_rate: Learning rate of the server optimizer; the strategy's own if left out.

    Raises:
        UsageError: The name is unknown, or the strategy has no server optimizer for the learning rate.
    """
    if name not in STRATEGIES:
        raise unknown_name("strategy", name, list(STRATEGIES))
    strategy: Callable[..., Strategy] = STRATEGIES[name]
    if server_learning_rate is None:
        return strategy()
    if "server_learning_rate" not in inspect.signature(strategy).parameters:
        raise UsageError(f"strategy {name!r} has no server optimizer; leave the server learning rate out")
    return strategy(server_learning_rate=server_learning_rate)


def refusal_of_rule(rule: AggregateRule, strategy: Strategy) -> str | None:
    """Return why a rule cannot aggregate the updates of a strategy, with the remedy; None where it can."""
    if rule.name == "trimmed" and strategy.moments:
        return (
            f"trimmed leaves out values one by one, so the first and second moments that {strategy.name} sends would no longer "
            "fit each other; use centred or bucketed, or strategy fedavg or fedadam"
        )
    return None


def zeros(schema: Schema) -> dict[str, Array]:
    """Return zeros for each tensor of `schema`."""
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.specs}
