"""FedAvgM: Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution"."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.coordinator.strategies.server_optimizer import Float64, ServerOptimizer
from fedpatch.shared.tensors.arrays import Array


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
