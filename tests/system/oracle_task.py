"""A task for whole rounds: a small model with two layers of batch norm, and a configured amount of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import DeviceData, Task
from tests.support.tanh_model import tanh_model

FEATURES, HIDDEN, CLASSES = 12, 10, 4

torch.set_num_threads(1)


def build_model() -> nn.Module:
    return tanh_model(FEATURES, HIDDEN, CLASSES)


def device_data(spec: str) -> DeviceData:
    """Return a device's data for a spec like "n=37,test=20,seed=3": with its own distribution of inputs and rule for labels."""
    try:
        fields = {name: int(value) for name, value in (part.split("=") for part in spec.split(","))}
        n, test, seed = fields["n"], fields["test"], fields["seed"]
    except (KeyError, ValueError):
        raise UsageError(f"data spec {spec!r} is not like n=37,test=20,seed=3") from None
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + test, FEATURES)) * rng.uniform(0.5, 2.0, FEATURES) + rng.normal(size=FEATURES)
    y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    x, y = x.astype(np.float32), y.astype(np.int64)
    return DeviceData(x[:n], y[:n], x[n:], y[n:])


def load_data(spec: str, _root: Path) -> DeviceData:
    """Return `device_data(spec)`; no files are read."""
    return device_data(spec)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of targets with the highest output."""
    return float((outputs.argmax(dim=1) == targets).float().mean())


TASK = Task(
    "oracle",
    "random numbers",
    build_model,
    load_data,
    F.cross_entropy,
    accuracy,
    batch_size=7,
    learning_rates={"fedavg": 0.2, "fedadam": 0.2, "fedavg-adam": 0.01},
    server_learning_rates={"fedadam": 0.02},
    validation_share=0.0,  # the oracle has the paper's split
)
REFERENCE = "tests.system.oracle_task:TASK"
