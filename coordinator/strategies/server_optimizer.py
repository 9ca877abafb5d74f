"""The optimizer of a server, for which the difference of model and mean is the gradient.

With the pseudo-gradient g_t = Omega_t - mean, every step is Omega_{t+1} = Omega_t - eta m_t / (sqrt(v_t) + tau). Reddi et al.
2021, "Adaptive federated optimization", Algorithm 2, write the same with Delta_t = -g_t. Optimizers step trained tensors only.
Statistics and buffers are averaged: Adam would make a variance negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, moment_name

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
