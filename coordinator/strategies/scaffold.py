"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated learning".

This file has the server's step. coordinator.aggregation.control_variates has the server's control variate, which every round
moves; Algorithm 1 with option II.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.coordinator.strategies.server_optimizer import Float64, ServerOptimizer
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.plan_terms import CONTROL


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
