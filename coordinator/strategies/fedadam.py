"""FedAdam: Leroy et al. 2019, whose server Adam the MTFL paper uses; after Reddi et al. 2021, Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.strategies.server_optimizer import Float64, ServerOptimizer
from fedpatch.shared.tensors.arrays import Array


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
