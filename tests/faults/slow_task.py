"""The oracle's task with a wider model, which travels in several chunks, and with a pause in each step of training.

A data spec is the oracle's, and then `;pause_ms=N`. The pause makes a round long enough for a fault in its middle.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from fedpatch.shared.tasks.task import DeviceData
from tests.support.tanh_model import tanh_model
from tests.system import oracle_task
from tests.system.oracle_task import CLASSES, FEATURES

HIDDEN = 48


def build_model() -> nn.Module:
    return tanh_model(FEATURES, HIDDEN, CLASSES)


class _Slow:
    """A loss with a pause; each training process has one."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    def load_data(self, spec: str, root: Path) -> DeviceData:
        data, _, pause = spec.partition(";pause_ms=")
        self._pause_s = int(pause or 0) / 1000
        return oracle_task.load_data(data, root)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        time.sleep(self._pause_s)
        return F.cross_entropy(outputs, targets)


_slow = _Slow()

TASK = dataclasses.replace(
    oracle_task.TASK, name="slow", build_model=build_model, load_data=_slow.load_data, loss=_slow.loss
)
REFERENCE = "tests.faults.slow_task:TASK"
