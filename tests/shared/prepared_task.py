"""A task whose `prepare` scales raw rows, and data with the faults of their spec: `good`, `nan`, `labels` and so on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpatch.shared.tasks import metrics
from fedpatch.shared.tasks.task import DeviceData, Task

if TYPE_CHECKING:
    from torch import Tensor, nn

REFERENCE = "tests.shared.prepared_task:TASK"
MEAN, SCALE = np.array([20.0, 1000.0, 300.0], np.float32), np.array([5.0, 30.0, 200.0], np.float32)
COUNT, TEST = 120, 60


def build_model() -> nn.Module:
    """A model that does not begin with a batch norm: raw rows spoil its training."""
    from torch import nn

    return nn.Sequential(
        OrderedDict[str, nn.Module](fc1=nn.Linear(3, 16), tanh=nn.Tanh(), bn1=nn.BatchNorm1d(16), fc2=nn.Linear(16, 2))
    )


def prepare(raw: np.ndarray) -> np.ndarray:
    """Scale by constants; a missing value becomes the mean."""
    scaled: np.ndarray = np.nan_to_num((raw - MEAN) / SCALE, nan=0.0)
    return scaled


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Raw rows, and the class of each."""
    rng = np.random.default_rng(seed)
    scaled = rng.normal(size=(count, 3))
    return (scaled * SCALE + MEAN).astype(np.float32), (scaled.sum(axis=1) > 0).astype(np.int64)


def _with(place: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that puts `value` at `place` of a copy; if the value is text, the copy is an array of objects."""

    def change(array: np.ndarray) -> np.ndarray:
        changed = array.astype(object if isinstance(value, str) else array.dtype)
        changed[place] = value
        return changed

    return change


_INPUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "nan": _with((12, 1), np.nan),
    "inf": _with((12, 1), np.inf),
    "words": _with((3, 0), "warm"),
    "float64": lambda x: x.astype(np.float64),
    "shape": lambda x: x[:, :2],
}
_TARGETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "labels": _with(7, 5),
    "one class": _with(slice(COUNT), 1),
    "rare": lambda y: np.concatenate([np.arange(COUNT) // (COUNT - 4), y[COUNT:]]),
}


def load_data(spec: str, root: Path) -> DeviceData:
    """Raw rows; `spec` names their fault."""
    x, y = rows(COUNT + TEST)
    if spec == "bug":
        raise KeyError("no such column")
    x = _INPUTS.get(spec, lambda x: x)(x)
    y = _TARGETS.get(spec, lambda y: y)(y)
    if spec == "twice":
        x[COUNT : COUNT + 9], y[COUNT : COUNT + 9] = x[:9], y[:9]
    return DeviceData(x[:COUNT], y[:COUNT], x[COUNT:], y[COUNT:], origin=_origin)


def _origin(field: str, row: int) -> str:
    return f"file readings.csv, line {row + 1 + (COUNT if field.startswith('test') else 0)}"


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


TASK = Task(
    name="prepared",
    description="rows of three sensors, scaled by prepare",
    build_model=build_model,
    load_data=load_data,
    loss=loss,
    metric=metrics.accuracy,
    metric_takes_arrays=True,
    class_names=("low", "high"),
    input_shape=(3,),
    prepare=prepare,
    demo_data="good",
    learning_rates={"fedavg": 0.3, "fedavg-adam": 0.02},
)
PLAIN = replace(TASK, prepare=None)
