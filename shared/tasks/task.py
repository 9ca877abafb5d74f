"""`Task`: model, loss, metric and a device's data; and the search for installed tasks.

A task is the user's code, installed on the coordinator and on every device. Both name it in their own configuration; no name
from the network is ever imported. The import of this module does not import torch, which a device's agent process does not
need.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpatch.shared.app.named_plugins import PluginKind
from fedpatch.shared.config.fields import NAME
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.downloads import DataFile
from fedpatch.shared.tasks.metric_spec import ACCURACY, Goal, MetricTerms, metric_terms
from fedpatch.shared.tasks.reading.readings_format import ReadingsFormat

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

ENTRY_POINT_GROUP = "fedpatch.tasks"
MAX_VALIDATION_SHARE = 0.5


@dataclass(frozen=True)
class DeviceData:
    """One device's own examples; they never leave it.

    Args:
        train_x: Training inputs, examples along the first axis, in the model's input dtype.
        train_y: Training targets, one for each input.
        test_x: Test inputs, as `train_x`.
        test_y: Test targets, one for each input.
        counts_in_ua: False for a device whose accuracy does not measure the model (the paper's noisy clients): it
            trains, and stays out of the mean user accuracy.
        val_x: Validation inputs, on which the agent chooses the personal model; nothing trains on them. None: they are
            split off the training data (`Task.validation_share`, `Task.ordered`). Empty: there are none.
        val_y: Validation targets, one for each input; None where `val_x` is None.
        origin: Function of a field and a row that returns, for messages, where the row came from, such as
            `origin("train_x", 12)`: "readings.csv, line 13".
        readings: File, first and last reading of each training example, integers of shape (n, 3), as
            `Examples.device_data` gives them: then no validation example that is split off shares a reading with a training
            example, and none is a copy of one. None: examples are independent of each other.
        input_names: Names of the inputs along their first axis, for messages.
        notes: A sentence for each kind of row that was left out or filled, for `check-task`.
        keep_copies: Whether equal values may stand in the training and the validation part.

    Raises:
        DataError: Inputs and targets differ in number, or the training or test part is empty.

    Example:
        >>> import numpy as np
        >>> from fedpatch import DeviceData
        >>> x, y = np.zeros((8, 3), np.float32), np.zeros(8, np.int64)
        >>> data = DeviceData(x[:6], y[:6], x[6:], y[6:])
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    counts_in_ua: bool = True
    val_x: np.ndarray | None = None
    val_y: np.ndarray | None = None
    origin: Callable[[str, int], str] | None = None
    readings: np.ndarray | None = None
    input_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    keep_copies: bool = False

    def __post_init__(self) -> None:
        for part, inputs, targets in (
            ("training", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if len(inputs) != len(targets):
                raise DataError(f"{part} data has {len(inputs)} inputs but {len(targets)} targets; give one per input")
            if len(inputs) == 0:
                raise DataError(f"{part} data is empty; a device needs at least one training and one test example")
        self._check_validation()

    def _check_validation(self) -> None:
        if self.val_x is None and self.val_y is None:
            return
        if self.val_x is None or self.val_y is None:
            given, absent = ("val_y", "val_x") if self.val_x is None else ("val_x", "val_y")
            raise DataError(
                f"validation data has {given} but no {absent}; give both, or neither to have them split off"
            )
        if len(self.val_x) != len(self.val_y):
            counts = f"{len(self.val_x)} inputs but {len(self.val_y)} targets"
            raise DataError(f"validation data has {counts}; give one per input")


_FIELDS_OF_SPECS = {"demo_data": ("index", "count"), "simulation_data": ("index", "count", "seed")}


@dataclass(frozen=True)
class Task:
    """A model, the data of a device, a loss and a metric: all that fedpatch needs to train.

    Args:
        name: Name of the task on the wire: 1 to 32 lower-case letters, digits, `-` and `_`.
        description: One line for lists of tasks.
        build_model: Returns a freshly initialised module; every call must give the same names, shapes and dtypes.
        load_data: `load_data(spec, root)` returns the data of the device whose configuration holds the string `spec`. The
            task decides what `spec` means; `root` is the folder for data files (`data_root()`). It raises UsageError for a
            spec that cannot be read, DataError for data that are absent, damaged or too few.
        loss: `loss(outputs, targets)` is differentiated for every minibatch and must be a mean over it.
        metric: `metric(outputs, targets)` is the user accuracy, from all test examples of a device at once: a fraction from
            0 to 1, unless `metric_name` names another measure.
        batch_size: Examples in a minibatch, at least 1.
        learning_rates: By name of the strategy; used where a run does not set its own.
        server_learning_rates: By name of the strategy; used where a run does not set its own.
        demo_data: A data spec with the fields `{index}` and `{count}`, one for each device of `fedpatch demo`. Empty: the
            task has no demo.
        load_many: `load_many(specs, root)` returns the data of many devices at once, in the order of `specs`, for
            simulations. None: `load_data` is called for each.
        simulation_data: A data spec with the fields `{index}`, `{count}` and `{seed}`, one for each client of
            `fedpatch simulate`. Empty: `demo_data` is used.
        class_names: Names of the model's outputs, in their order.
        input_shape: Shape of one (prepared) input; `fedpatch export` needs it, because it has no data.
        input_dtype: Dtype of an input.
        metric_takes_arrays: `metric` takes NumPy arrays as well as tensors, and imports no torch for them; then
            `fedpatch-agent evaluate` needs no torch either.
        metric_name: Name of the measure.
        metric_goal: "max" if more is better, "min" if less is.
        metric_range: Limits of the measure. None: 0 to 1 for an accuracy, else any finite number.
        data_version: `data_version(spec, root)` returns, at little cost, a version of data that grow: when it changes, a
            device reads its data again before the next round. None: data stay as they are.
        validation_share: Share of the training data, from 0 to 0.5, that is held out for validation where `load_data` gives
            none. 0: none is, and the newest personal model is published.
        ordered: Whether training examples are in order of time and the order matters: then the last ones are held out
            (fedpatch.shared.tasks.validation_split).
        prepare: `prepare(raw)` makes the model's inputs of raw ones: float32 arrays in and out, examples along the first
            axis, each example by itself, with NumPy alone. With it `load_data` returns raw inputs, and fedpatch applies it
            in training, in measuring and in prediction.
        raw_shape: Shape of one raw input where it differs from `input_shape`.
        readings: Columns and windows of the files that `load_data` reads, an `examples.ReadingsFormat`. With it
            `fedpatch-agent predict` and `PersonalModel` take such files, with or without the target.
        features: `features(payload)` makes one raw example, an array, of the JSON that comes on a bus (`fedpatch-agent bus`),
            such as a window of readings; with NumPy alone. None: the payload is the example.
        head: Patterns for the names of the head's tensors, which stay on each device with `--private head`, such as
            ("fc3.*",). Empty: the task names none.
        frozen: Values that never change, which no round sends or stores: True for each parameter without requires_grad, or
            patterns for names, also of buffers. `build_model` gives them the same values on each call and each device.
        frozen_file: File of the frozen values, as `numpy.savez(path, **values)` writes it by name, below `data_root()`; a
            device that lacks it downloads it once. None: `build_model` makes the values.

    Raises:
        UsageError: The name, batch size, validation share, a term of the metric or of the frozen values is not allowed.

    Example:
        >>> import numpy as np
        >>> from fedpatch import DeviceData, Task, metrics
        >>> def build_model():
        ...     from torch import nn
        ...     return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> def load_data(spec, root):
        ...     rng = np.random.default_rng(int(spec))
        ...     x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 2, 40)
        ...     return DeviceData(x[:30], y[:30], x[30:], y[30:])
        >>> def loss(outputs, targets):
        ...     from torch.nn import functional as F
        ...     return F.cross_entropy(outputs, targets)
        >>> TASK = Task("coins", "tosses of a coin", build_model, load_data, loss, metrics.accuracy)
        >>> TASK.batch_size
        20
    """

    name: str
    description: str
    build_model: Callable[[], nn.Module]
    load_data: Callable[[str, Path], DeviceData]
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], float]
    batch_size: int = 20
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    server_learning_rates: Mapping[str, float] = field(default_factory=dict)
    demo_data: str = ""
    load_many: Callable[[Sequence[str], Path], list[DeviceData]] | None = None
    simulation_data: str = ""
    class_names: tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()
    input_dtype: str = "float32"
    metric_takes_arrays: bool = False
    metric_name: str = ACCURACY
    metric_goal: Goal = "max"
    metric_range: tuple[float, float] | None = None
    data_version: Callable[[str, Path], str | int | None] | None = None
    validation_share: float = 0.1
    ordered: bool = False
    prepare: Callable[[np.ndarray], np.ndarray] | None = None
    raw_shape: tuple[int, ...] = ()
    features: Callable[[Any], Any] | None = None
    head: tuple[str, ...] = ()
    frozen: bool | tuple[str, ...] = False
    frozen_file: DataFile | None = None
    readings: ReadingsFormat | None = None

    @property
    def metric_terms(self) -> MetricTerms:
        """Name, goal and range of `metric`. Raises UsageError if one of them is not allowed."""
        return metric_terms(self.metric_name, self.metric_goal, self.metric_range)

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME.regex, self.name):
            raise UsageError(f"task name {self.name!r} is not allowed; use {NAME.words}")
        if self.batch_size < 1:
            raise UsageError(f"task {self.name!r}: batch_size is {self.batch_size}; it must be at least 1")
        if not 0.0 <= self.validation_share <= MAX_VALIDATION_SHARE:
            raise UsageError(
                f"task {self.name!r}: validation_share is {self.validation_share}; it must be from 0 to "
                f"{MAX_VALIDATION_SHARE:g}"
            )
        if isinstance(self.frozen, str):
            raise UsageError(f"task {self.name!r}: frozen is {self.frozen!r}; write a tuple of patterns, or True")
        if self.frozen_file is not None and not self.frozen:
            raise UsageError(f"task {self.name!r} has a frozen_file and no frozen values; add frozen=True")
        for setting, fields in _FIELDS_OF_SPECS.items():
            self._check_spec(setting, fields)
        _ = self.metric_terms

    def _check_spec(self, setting: str, fields: Sequence[str]) -> None:
        template = getattr(self, setting)
        try:
            template.format(**dict.fromkeys(fields, 0))
        except (LookupError, ValueError, AttributeError, TypeError):
            known = " and ".join(f"{{{field}}}" for field in fields)
            raise UsageError(
                f"task {self.name!r}: {setting} is {template!r}; its fields are {known}, and a brace is written twice"
            ) from None


def data_root() -> Path:
    """Folder that holds one folder of data files per task: FEDPATCH_DATA, or ~/.cache/fedpatch/data.

    Returns:
        The folder, which need not exist.

    Example:
        >>> import os
        >>> from fedpatch import data_root
        >>> os.environ["FEDPATCH_DATA"] = "/srv/data"
        >>> str(data_root())
        '/srv/data'
    """
    chosen = os.environ.get("FEDPATCH_DATA")
    try:
        return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedpatch" / "data"
    except RuntimeError:
        raise UsageError(
            "this user has no home directory, below which data would be; set FEDPATCH_DATA (or --data-root) or HOME"
        ) from None


def use_data_root(root: Path) -> None:
    """Let `data_root()` return this folder, in this process and those that it starts."""
    os.environ["FEDPATCH_DATA"] = str(root)


def _is_task(value: object) -> bool:
    return isinstance(value, Task)


TASKS: PluginKind[Task] = PluginKind(
    "task", ENTRY_POINT_GROUP, _is_task, "a fedpatch.Task", lambda task: task.name, "TASK"
)
"""The tasks that are installed here. No module is imported before a task is found by its name."""


def find_task(ref: str) -> Task:
    """Return the installed task named `ref`, or the task that `ref` names as `module:attribute`. Raises UsageError."""
    return TASKS.find(ref)
