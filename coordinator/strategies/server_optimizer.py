"""Strategies with an optimizer on the server, for which the difference of model and mean is the gradient.

    strategy       LocalUpdate   GlobalModelUpdate
    fedavgm        SGD           SGD with momentum
    fedadam        SGD           Adam
    fedyogi        SGD           Yogi
    fedadagrad     SGD           Adagrad
    scaffold       SGD           SGD

With the pseudo-gradient g_t = Omega_t - mean, every step is Omega_{t+1} = Omega_t - eta m_t / (sqrt(v_t) + tau). Reddi et al.
2021 write the same with Delta_t = -g_t. Optimizers step trained tensors only. Statistics and buffers are averaged: Adam would
make a variance negative.

With SCAFFOLD each device corrects its steps by control variates, so that many local steps on different data drift apart less.
The server's control variate c travels with the model, as the moments of FedAvg-Adam do. A device keeps its own c_i, and sends
c + c_i+ - c_i. So the mean of the updates is c + 1 / |S| * sum(c_i+ - c_i).

Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution" (FedAvgM); Reddi et al. 2021, "Adaptive
federated optimization", Algorithm 2 (FedAdagrad, FedYogi, FedAdam); Leroy et al. 2019, whose server Adam the MTFL paper uses;
Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated learning", Algorithm 1 with option II.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpatch.coordinator.aggregation.strategy import ServerState, Strategy
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, moment_name
from fedpatch.shared.wire.plan_terms import CONTROL

Float64 = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ServerOptimizer(Strategy):
    """Base class: clients run SGD, the server steps along the mean difference by a rule of the subclass.

    Attributes:
        server_learning_rate: eta, above 0.
        server_moments: Tensors of the optimizer for each trained tensor, a selection of MOMENTS.
    """

    server_moments: ClassVar[tuple[str, ...]] = ()

    server_learning_rate: float = 0.01

    def __post_init__(self) -> None:
        if not (math.isfinite(self.server_learning_rate) and self.server_learning_rate > 0):
            raise UsageError(f"{self.name}: server learning rate {self.server_learning_rate} must be a number above 0")

    def optimizer_schema(self, schema: Schema) -> Schema:
        """Return the schema of the server's moments of all trainable tensors."""
        both = schema.with_moments(self.server_moments)
        return both.subset(set(both.names) - set(schema.names))

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """Return the state after one step of the server optimizer.

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
            names = [moment_name(spec.name, moment) for moment in self.server_moments]
            omega = state.tensors[spec.name].astype(np.float64)
            step, moments = self.step(omega - mean[spec.name], *(state.server[name] for name in names))
            tensors[spec.name] = np.asarray(omega - step, spec.dtype)
            server |= {name: _cast(moment, spec.dtype) for name, moment in zip(names, moments, strict=True)}
        return replace(averaged, tensors=tensors, server=server)

    def step(self, gradient: Float64, *moments: Array) -> tuple[Float64, tuple[Float64, ...]]:
        """Return the step that is subtracted from one tensor, and the tensor's moments after the step.

        Args:
            gradient: The model before the round minus the mean of the updates.
            moments: The moments before the round, in the order of `server_moments`.
        """
        raise NotImplementedError


def _cast(moment: Float64, dtype: str) -> Array:
    """Return a moment in the dtype of its parameter. A square beyond float16 becomes its largest number, not infinity."""
    limits = np.finfo(dtype)
    return np.asarray(np.clip(moment, limits.min, limits.max), dtype)


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """Server momentum: v_t = beta v_{t-1} + g_t and Omega_{t+1} = Omega_t - eta v_t (Hsu et al. 2019, section 4.3)."""

    name = "fedavgm"
    description = "clients SGD, server momentum (Hsu et al. 2019)"
    server_moments = ("exp_avg",)

    server_learning_rate: float = 1.0
    server_beta: float = 0.9

    def step(self, gradient: Float64, *moments: Array) -> tuple[Float64, tuple[Float64, ...]]:
        """Return eta v_t, and v_t."""
        velocity = self.server_beta * moments[0] + gradient
        return self.server_learning_rate * velocity, (velocity,)


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """Server Adam without bias correction, from moments of zero: m_t and v_t are moving averages of g_t and its square.

    The constants are those of the MTFL paper's experiments.
    """

    name = "fedadam"
    description = "clients SGD, server Adam on the mean difference (after Reddi et al. 2021)"
    server_moments = ("exp_avg", "exp_avg_sq")
    rates_of = "fedadam"

    server_beta_1: float = 0.9
    server_beta_2: float = 0.999
    server_epsilon: float = 1e-4

    def step(self, gradient: Float64, *moments: Array) -> tuple[Float64, tuple[Float64, ...]]:
        """Return eta m_t / (sqrt(v_t) + epsilon), and m_t and v_t."""
        m = self.server_beta_1 * moments[0] + (1 - self.server_beta_1) * gradient
        v = self.second_moment(moments[1], gradient**2)
        return self.server_learning_rate * m / (np.sqrt(v) + self.server_epsilon), (m, v)

    def second_moment(self, before: Array, squared: Float64) -> Float64:
        """Return v_t from v_{t-1} and the square of g_t."""
        return np.asarray(self.server_beta_2 * before + (1 - self.server_beta_2) * squared)


@dataclass(frozen=True)
class _FromTau(FedAdam):
    """Reddi et al.'s rules: v_{-1} = tau^2 (Algorithm 2), tau 1e-3, beta_2 0.99 (section 5.2)."""

    server_beta_2: float = 0.99
    server_epsilon: float = 1e-3

    def init(self, tensors: Tensors, schema: Schema) -> ServerState:
        """Return the state before the first round, with second moments of tau^2."""
        state = super().init(tensors, schema)
        second = {
            name: np.full_like(array, self.server_epsilon**2)
            for name, array in state.server.items()
            if name.endswith(":exp_avg_sq")
        }
        return replace(state, server=state.server | second)


@dataclass(frozen=True)
class FedYogi(_FromTau):
    """Server Yogi: v_t = v_{t-1} - (1 - beta_2) g_t^2 sign(v_{t-1} - g_t^2), which lets v fall slowly."""

    name = "fedyogi"
    description = "clients SGD, server Yogi on the mean difference (Reddi et al. 2021)"

    def second_moment(self, before: Array, squared: Float64) -> Float64:
        """Return v_t from v_{t-1} and the square of g_t."""
        return np.asarray(before - (1 - self.server_beta_2) * squared * np.sign(before - squared))


@dataclass(frozen=True)
class FedAdagrad(_FromTau):
    """Server Adagrad: v_t = v_{t-1} + g_t^2, and no momentum (beta_1 is 0)."""

    name = "fedadagrad"
    description = "clients SGD, server Adagrad on the mean difference (Reddi et al. 2021)"

    server_beta_1: float = 0.0

    def second_moment(self, before: Array, squared: Float64) -> Float64:
        """Return v_t from v_{t-1} and the square of g_t."""
        return np.asarray(before + squared)


@dataclass(frozen=True)
class Scaffold(ServerOptimizer):
    """Devices run SGD with control variates; the server steps to the mean, in which each device counts alike.

    Attributes:
        server_learning_rate: eta_g, above 0; 1 takes the mean itself.
    """

    name = "scaffold"
    description = "clients SGD with control variates, server mean (Karimireddy et al. 2020)"
    moments = (CONTROL,)

    server_learning_rate: float = 1.0

    def step(self, gradient: Float64, *moments: Array) -> tuple[Float64, tuple[Float64, ...]]:
        """Return eta_g times the difference of model and mean."""
        return self.server_learning_rate * gradient, ()


@dataclass(frozen=True)
class Controls:
    """The server's part of the control variates after a round.

    Attributes:
        mean: The mean of the round with the new c.
        counted: The last round whose aggregate has a device's update, by device.
        population: N, the number of devices over which c is a mean.
    """

    mean: dict[str, Array]
    counted: dict[str, int]
    population: int

    def kept_in(self, state: ServerState) -> ServerState:
        """Return the state with what the next round needs."""
        return replace(state, counted=self.counted, population=self.population)


def add_controls(
    state: ServerState,
    mean: Tensors,
    devices: Sequence[str],
    *,
    round_number: int,
    population: int,
    clipped: Container[str] = (),
) -> Controls:
    """Return the mean of a round with the new c: Algorithm 1, line 17.

    c stays the mean of c_i over N devices, where c_i is 0 for devices that have never counted. N is `population`, or the number
    of devices that have counted if that is more. While N does not change, c moves by |S| / N times the mean difference. A
    resume may change `population`, so the state has the N of its c.

    Args:
        state: The state before the round.
        mean: The mean of the updates, in which each device counts alike.
        devices: S, the devices whose updates are in the mean.
        round_number: Number of the round.
        population: Number of devices of the fleet, as far as it is known beforehand.
        clipped: Devices whose update was clipped. Their c_i stays as before, and `mean` has c in its place.
    """
    moved_devices = [device for device in devices if device not in clipped]
    counted = dict(state.counted) | dict.fromkeys(moved_devices, round_number)
    # A state of an earlier version has no N; its run was hardly ever resumed for another fleet.
    before = max(state.population or population, len(state.counted))
    after = max(population, len(counted))
    moved = dict(mean)
    for name in (name for name in mean if name.endswith(f":{CONTROL}")):
        c = state.tensors[name].astype(np.float64)
        moved[name] = np.asarray((before * c + len(devices) * (mean[name] - c)) / after, mean[name].dtype)
    return Controls(moved, counted, after)
