"""FedAvg: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data", Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.coordinator.aggregation.strategy import Strategy


@dataclass(frozen=True)
class FedAvg(Strategy):
    """Clients run SGD, the server takes the mean."""

    name = "fedavg"
    description = "clients SGD, server mean (McMahan et al. 2017)"
