"""The task `digits` in float64: batch norm of a ReLU that is nearly always zero magnifies rounding errors of float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.task import DeviceData


def build_model() -> nn.Module:
    """Return the model of digits in float64."""
    return digits.build_model().double()


def load_data(spec: str, root: Path) -> DeviceData:
    """Return the data of digits in float64."""
    return load_many([spec], root)[0]


def load_many(specs: Sequence[str], root: Path) -> list[DeviceData]:
    """Return the data of digits in float64, for many specs."""
    return [
        replace(one, train_x=one.train_x.astype(np.float64), test_x=one.test_x.astype(np.float64))
        for one in digits.load_many(specs, root)
    ]


TASK = replace(
    digits.TASK,
    name="wide-digits",
    build_model=build_model,
    load_data=load_data,
    load_many=load_many,
    input_dtype="float64",
)
