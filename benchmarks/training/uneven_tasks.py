"""The tasks digits and MNIST with devices that have very different numbers of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpatch.shared.tasks.bundled.digits import TASK as EVEN_DIGITS
from fedpatch.shared.tasks.bundled.mnist import TASK as EVEN_MNIST
from fedpatch.shared.tasks.bundled.partition import parse_data_spec
from fedpatch.shared.tasks.task import DeviceData, Task

LEAST_SHARE = 0.03
"""Least share of its shards' examples that a device keeps: shares are drawn log-uniformly from this to 1."""


def _uneven(task: Task) -> Task:
    def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
        assert task.load_many is not None
        return [_part(data, spec) for data, spec in zip(task.load_many(specs, root), specs, strict=True)]

    def load_data(spec: str, root: Path) -> DeviceData:
        return load_many([spec], root)[0]

    return replace(task, load_data=load_data, load_many=load_many)


def _part(data: DeviceData, spec: str) -> DeviceData:
    parsed = parse_data_spec(spec)
    rng = np.random.default_rng([parsed.seed, parsed.index])
    count = max(1, round(len(data.train_x) * LEAST_SHARE ** rng.uniform()))
    kept = np.sort(rng.permutation(len(data.train_x))[:count])
    return replace(data, train_x=data.train_x[kept], train_y=data.train_y[kept])


DIGITS, MNIST = _uneven(EVEN_DIGITS), _uneven(EVEN_MNIST)
