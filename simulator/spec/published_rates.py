"""The published learning rates of Per-FedAvg and pFedMe, by scenario of the MTFL paper: the simulator's defaults."""

from __future__ import annotations

SCENARIOS = ((200, 0.5), (200, 1.0), (400, 0.5), (400, 1.0))  # W clients; the share C of them takes part in a round

# (alpha, beta) of Per-FedAvg and (eta, lambda) of pFedMe, for each of SCENARIOS.
PER_FEDAVG_RATES = {
    "mnist": ((0.1, 0.3), (0.03, 0.3), (0.1, 0.3), (0.03, 0.3)),
    "cifar10": ((0.1, 0.1), (0.1, 0.1), (0.1, 0.3), (0.1, 0.1)),
}
PFEDME_RATES = {
    "mnist": ((0.1, 1.0), (0.03, 3.0), (0.03, 3.0), (0.03, 3.0)),
    "cifar10": ((0.1, 1.0), (0.1, 1.0), (0.1, 3.0), (0.1, 3.0)),
}
