"""The second moments of Reddi et al. 2021, "Adaptive federated optimization": they begin at tau^2 instead of zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.strategies.fedadam import FedAdam
from fedpatch.shared.tensors.arrays import Schema, Tensors


@dataclass(frozen=True)
class InitialTau(FedAdam):
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
