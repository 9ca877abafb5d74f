"""The optimisation strategies: what a device does in LocalUpdate, and how the server makes the next global model.

A strategy is the three columns of the paper's Table 1. For the device it is data, a TrainPlan; for the server it is two
pure functions, `init` and `finish`, around the weighted mean of the round's updates (coordinator.aggregation.weighted_mean).

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

from fedpatch.coordinator.aggregation.norm_clipping import References
from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.tensors.arrays import MOMENTS, Array, Schema, Tensors, moment_name
from fedpatch.shared.wire.messages import TrainPlan


@dataclass(frozen=True)
class ServerState:
    """What the server carries from round to round.

    `round` counts completed rounds. `tensors` is the global public model and the moments that clients share; it is what
    a device downloads. `server` is what the server optimizer keeps for itself. Arrays are never changed in place.
    `references` are the usual norms of the last rounds' updates (coordinator.aggregation.norm_clipping).
    """

    round: int
    tensors: dict[str, Array]
    server: dict[str, Array]
    references: References = field(default_factory=dict)


@dataclass(frozen=True)
class Strategy:
    """FedAvg's server side, which others build on; the class variables say what a device does.

    Every `schema` is that of the public model, without moments.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    client_optimizer: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ()
    beta_1: ClassVar[float] = 0.9
    beta_2: ClassVar[float] = 0.999
    epsilon: ClassVar[float] = 1e-7

    def plan(self, learning_rate: float, batch_size: int, epochs: int, steps: int, seed: int) -> TrainPlan:
        """LocalUpdate as data; `learning_rate` is the client optimizer's."""
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
        """Schema of what goes down and comes up each round: the public model and the moments that clients share."""
        return schema.with_moments(self.moments)

    def optimizer_schema(self, schema: Schema) -> Schema:
        """Schema of `ServerState.server`."""
        return Schema(())

    def init(self, tensors: Tensors, schema: Schema) -> ServerState:
        """State before the first round, from the initial public model; all moments begin at zero."""
        schema.check(tensors)
        shared = zeros(self.travelling(schema)) | dict(tensors)
        return ServerState(0, shared, zeros(self.optimizer_schema(schema)))

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """State after a round whose weighted mean is `mean`; `state` stays as it is."""
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

    Only what clients train is stepped. Statistics and buffers are averaged: Adam would drive a variance below zero.
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
        """First and second moment of every trainable tensor."""
        both = schema.with_moments(("exp_avg", "exp_avg_sq"))
        return both.subset(set(both.names) - set(schema.names))

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """One step of the server optimizer (Reddi et al. 2021, Algorithm 2, FedAdam)."""
        averaged = super().finish(state, mean, schema)
        tensors, server = averaged.tensors, dict(state.server)
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
    """Return the strategy of that name, with its own server learning rate where none is given.

    Raises UsageError for an unknown name (with the nearest), and for a server learning rate where there is no server
    optimizer to use it.
    """
    if name not in STRATEGIES:
        raise unknown_name("strategy", name, list(STRATEGIES))
    strategy: Callable[..., Strategy] = STRATEGIES[name]
    if server_learning_rate is None:
        return strategy()
    if "server_learning_rate" not in inspect.signature(strategy).parameters:
        raise UsageError(f"strategy {name!r} has no server optimizer; leave the server learning rate out")
    return strategy(server_learning_rate=server_learning_rate)


def zeros(schema: Schema) -> dict[str, Array]:
    """Zeros for every tensor of `schema`."""
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.specs}
