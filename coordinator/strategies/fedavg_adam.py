"""FedAvg-Adam: Mills, Hu and Min 2021, section 3.3; the devices share the moments of Adam."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.shared.tensors.arrays import MOMENTS


@dataclass(frozen=True)
class FedAvgAdam(Strategy):
    """Clients run Adam from shared moments, the server takes the mean of the model, both moments and the step count.

    Three times the bytes of FedAvg, far fewer rounds (paper, section 3.3).
    """

    name = "fedavg-adam"
    description = "clients Adam with shared moments, server mean of model and moments (Mills et al. 2021)"
    client_optimizer = "adam"
    moments = MOMENTS
