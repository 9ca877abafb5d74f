"""Task `frozen-trunk`: MNIST behind random features that are never trained, and a shared head of 1,000 values.

The trunk follows from a fixed seed, so it is the same on each device. It is not in the model's schema and never travels
(random features: Rahimi and Recht 2007).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpatch import Task
from fedpatch.shared.tasks.bundled.mnist import TASK as MNIST

PIXELS, FEATURES, CLASSES = 784, 100, 10
_TRUNK_SEED = 2012


class FrozenTrunk(nn.Module):
    """Random features and a linear head without bias: FEATURES x CLASSES shared values."""

    trunk: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("trunk", _trunk(), persistent=False)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images of shape (n, 784)."""
        features = torch.relu((images - 0.13) @ self.trunk)
        logits: Tensor = self.head(functional.normalize(features, dim=1) * 4.0)
        return logits


@cache
def _trunk() -> Tensor:
    drawn = np.random.default_rng(_TRUNK_SEED).normal(0.0, PIXELS**-0.5, (PIXELS, FEATURES))
    return torch.from_numpy(drawn.astype(np.float32))


TASK = Task(
    name="frozen-trunk",
    description="MNIST behind frozen random features, with a shared head of 1,000 values",
    build_model=FrozenTrunk,
    load_data=MNIST.load_data,
    loss=MNIST.loss,
    metric=MNIST.metric,
    batch_size=20,
    learning_rates={"fedavg": 2.0, "fedadam": 2.0},
    simulation_data=MNIST.simulation_data,
)
