"""FedYogi: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.strategies.initial_tau import InitialTau
from fedpatch.coordinator.strategies.server_optimizer import Float64
from fedpatch.shared.tensors.arrays import Array


@dataclass(frozen=True)
class FedYogi(InitialTau):
    """Server Yogi: v_t = v_{t-1} - (1 - beta_2) g_t^2 sign(v_{t-1} - g_t^2), which lets v fall slowly."""

    name = "fedyogi"
    description = "clients SGD, server Yogi on the mean difference (Reddi et al. 2021)"

    def second_moment(self, before: Array, squared: Float64) -> Float64:
        """Return v_t from v_{t-1} and the square of g_t."""
        return np.asarray(before - (1 - self.server_beta_2) * squared * np.sign(before - squared))
