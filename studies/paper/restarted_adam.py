"""FedAvg-Adam whose count of steps restarts in each round: an experiment on the rounds of the paper's Table 2.

The paper averages Adam's moments (section 3.3) and does not mention the count of steps, which Adam's bias correction needs
(Kingma and Ba 2015, Algorithm 1). The published code averages the count, so the count grows from round to round. If the count
restarts while the moments stay, step t of a round is multiplied by sqrt(1 - beta_2^t) / (1 - beta_1^t): 0.32 in the first step,
0.15 in the tenth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.strategies.fedavg_adam import FedAvgAdam
from fedpatch.shared.tensors.arrays import Schema, Tensors


@dataclass(frozen=True)
class RestartedAdam(FedAvgAdam):
    """Clients run Adam from shared moments and a count of steps that is zero at the beginning of each round.

    The counts of private tensors stay on the devices and do not restart.
    """

    name = "fedavg-adam-restarted"
    description = "FedAvg-Adam whose count of steps restarts in each round"
    rates_of = "fedavg-adam"

    def finish(self, state: ServerState, mean: Tensors, schema: Schema) -> ServerState:
        """Return the state after a round: the mean of model and moments, and counts of zero.

        Args:
            state: The state before the round.
            mean: The weighted mean of the round's updates.
            schema: Schema of the public model.
        """
        after = super().finish(state, mean, schema)
        tensors = {
            name: np.zeros_like(values) if name.endswith(":step") else values for name, values in after.tensors.items()
        }
        return replace(after, tensors=tensors)
