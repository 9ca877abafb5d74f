r"""FedAvg-Adam with other constants of Adam: do they explain the rounds of Table 2's cell `all`, W=200, C=0.5?

The paper does not publish the constants; the defaults are those in the published code's manual. Each class changes one of
them. In this folder:

    fedpatch simulate --strategy adam_constants:CLASS --task mnist --clients 200 --participation 0.5 --private all \
        --data 'shard:{index}/{count},seed={seed}' --rounds 100 --target-ua 0.97 --batch-size 20 --norm-bound off \
        --max-num-examples off --encoding fp32 --seed 0 --json
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.coordinator.strategies.fedavg_adam import FedAvgAdam


@dataclass(frozen=True)
class ShortVariance(FedAvgAdam):
    """The second moment forgets ten times as fast."""

    name = "adam-beta2-99"
    description = "FedAvg-Adam with beta_2 = 0.99"
    rates_of = "fedavg-adam"
    beta_2 = 0.99


@dataclass(frozen=True)
class ShorterVariance(FedAvgAdam):
    """The second moment forgets a hundred times as fast."""

    name = "adam-beta2-90"
    description = "FedAvg-Adam with beta_2 = 0.9"
    rates_of = "fedavg-adam"
    beta_2 = 0.9


@dataclass(frozen=True)
class ShortMean(FedAvgAdam):
    """The first moment forgets five times as fast."""

    name = "adam-beta1-50"
    description = "FedAvg-Adam with beta_1 = 0.5"
    rates_of = "fedavg-adam"
    beta_1 = 0.5


@dataclass(frozen=True)
class LargeEpsilon(FedAvgAdam):
    """Steps of weights with small gradients are shorter."""

    name = "adam-epsilon-e3"
    description = "FedAvg-Adam with epsilon = 1e-3"
    rates_of = "fedavg-adam"
    epsilon = 1e-3
