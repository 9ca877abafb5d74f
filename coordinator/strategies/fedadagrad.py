"""FedAdagrad: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.strategies.initial_tau import InitialTau
from fedpatch.coordinator.strategies.server_optimizer import Float64
from fedpatch.shared.tensors.arrays import Array


@dataclass(frozen=True)
class FedAdagrad(InitialTau):
    """Server Adagrad: v_t = v_{t-1} + g_t^2, and no momentum (beta_1 is 0)."""

    name = "fedadagrad"
    description = "clients SGD, server Adagrad on the mean difference (Reddi et al. 2021)"

    server_beta_1: float = 0.0

    def second_moment(self, before: Array, squared: Float64) -> Float64:
        """Return v_t from v_{t-1} and the square of g_t."""
        return np.asarray(before + squared)
