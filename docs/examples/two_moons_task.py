"""Task `two-moons`: points on two half circles; every device sees them through a sensor of its own."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from fedpatch import DeviceData, Task, UsageError


def build_model() -> nn.Module:
    """Two inputs, two classes, one batch-norm layer: the patch that each device keeps for itself."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(2, 32),
            relu1=nn.ReLU(),
            bn1=nn.BatchNorm1d(32),
            fc2=nn.Linear(32, 2),
        )
    )


def load_data(spec: str, root: Path) -> DeviceData:
    """Points of the device that `spec`, such as `sensor:3`, numbers; a real task would read files below `root`."""
    match = re.fullmatch(r"sensor:([0-9]{1,6})", spec)
    if match is None:
        raise UsageError(f"two-moons: data spec {spec!r} must be sensor:NUMBER, for example sensor:3")
    rng = np.random.default_rng(int(match[1]))
    labels = rng.integers(0, 2, 300)
    angles = rng.uniform(0.0, np.pi, 300)
    points = np.stack([np.cos(angles), np.sin(angles) - 0.25], axis=1)
    points = np.where(labels[:, None] == 1, [1.0, 0.0] - points, points) + rng.normal(0.0, 0.1, (300, 2))
    gain, offset = rng.uniform(0.5, 2.0, 2), rng.uniform(-1.0, 1.0, 2)
    seen = (points * gain + offset).astype(np.float32)
    return DeviceData(train_x=seen[:240], train_y=labels[:240], test_x=seen[240:], test_y=labels[240:])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of a minibatch."""
    return functional.cross_entropy(outputs, targets)


def metric(outputs: Tensor, targets: Tensor) -> float:
    """Share of the device's test points that are classified rightly: its user accuracy."""
    return float((outputs.argmax(dim=1) == targets).float().mean().item())


TASK = Task(
    name="two-moons",
    description="points on two half circles, seen through a sensor of its own on each device",
    build_model=build_model,
    load_data=load_data,
    loss=loss,
    metric=metric,
    batch_size=20,
    learning_rates={"fedavg": 0.3, "fedavg-adam": 0.02},
    demo_data="sensor:{index}",
)
