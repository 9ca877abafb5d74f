"""A task for exact comparisons of simulations: float64 and tanh, so that only true differences show, and uneven clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedpatch.shared.tasks.bundled.classification import accuracy, cross_entropy
from fedpatch.shared.tasks.task import DeviceData, Task
from tests.support.tanh_model import tanh_model

FEATURES, HIDDEN, CLASSES, TEST = 10, 6, 3, 30

SPARSE = "client={index},of={count},seed={seed},used=5"
"""Each client has a few features of its own; the others are zero in all its examples."""
DENSE = "client={index},of={count},seed={seed},used=10"


def build_model() -> nn.Module:
    """The oracle's model in double precision."""
    return tanh_model(FEATURES, HIDDEN, CLASSES).to(torch.float64)


class Branched(nn.Module):
    """The same model with a connection from inputs to outputs, so it is no plain sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.body = build_model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds the first inputs to the outputs."""
        outputs: torch.Tensor = self.body(x)
        return outputs + x[:, :CLASSES]


def load_data(spec: str, _root: Path) -> DeviceData:
    """Between 5 and 32 examples, in no order of size, with a rule of the client's own for the labels."""
    fields = {name: int(value) for name, value in (part.split("=") for part in spec.split(","))}
    rng = np.random.default_rng([fields["seed"], fields["client"]])
    train = 5 + 9 * (fields["client"] * 2 % 4)
    x = rng.normal(size=(train + TEST, FEATURES)) * rng.uniform(0.5, 2.0, FEATURES) + rng.normal(size=FEATURES)
    x[:, rng.permutation(FEATURES)[fields["used"] :]] = 0.0
    y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    return DeviceData(x[:train], y[:train], x[train:], y[train:])


TASK = Task(
    "small", "random numbers", build_model, load_data, cross_entropy, accuracy, batch_size=6, validation_share=0.0
)
BRANCHED = Task(
    "branched", "random numbers", Branched, load_data, cross_entropy, accuracy, batch_size=6, validation_share=0.0
)
REFERENCE = "tests.simulator.small_task:TASK"

torch.set_num_threads(1)
