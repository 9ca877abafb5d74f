"""Two versions of one task, as they are when only one side has been updated."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

from torch import nn

from fedpatch.shared.tasks.task import Task
from tests.system import oracle_task
from tests.system.oracle_task import CLASSES, FEATURES


def _version(hidden: int) -> Task:
    def build_model() -> nn.Module:
        layers = {"fc1": nn.Linear(FEATURES, hidden), "bn1": nn.BatchNorm1d(hidden), "fc2": nn.Linear(hidden, CLASSES)}
        return nn.Sequential(OrderedDict[str, nn.Module](layers))

    return dataclasses.replace(oracle_task.TASK, name="mine", build_model=build_model)


OLD, NEW = _version(8), _version(9)
