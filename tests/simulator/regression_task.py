"""A regression task for simulations: its metric is an error, so less is better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from fedpatch.shared.tasks import metrics
from fedpatch.shared.tasks.task import DeviceData, Task

FEATURES = 3


def build_model() -> nn.Module:
    """FC -> tanh -> BN -> FC."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 1))


def load_data(spec: str, _root: Path) -> DeviceData:
    """Sixty examples of client number `spec`; y = 5 + the sum of x times the client's own gain."""
    rng = np.random.default_rng(int(spec))
    x = rng.normal(size=(60, FEATURES)).astype(np.float32)
    y = (5.0 + x.sum(axis=1) * rng.uniform(0.5, 1.5)).astype(np.float32)
    return DeviceData(x[:40], y[:40], x[40:], y[40:])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], targets)


TASK = Task(
    name="regression",
    description="sums of random numbers",
    build_model=build_model,
    load_data=load_data,
    loss=loss,
    metric=metrics.mae,
    metric_name="MAE",
    metric_goal="min",
    learning_rates={"fedavg": 0.05},
    demo_data="{index}",
    validation_share=0.0,
)
REFERENCE = "tests.simulator.regression_task:TASK"
