"""`Task`: model, loss, metric and a device's data; and the search for installed tasks.

A task is the user's code, installed on the coordinator and on every device. Both name it in their own configuration; no name
from the network is ever imported. The import of this module does not import torch, which a device's agent process does not
need.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpatch.shared.app.plugins import disable_ort_telemetry, load_entry_points
from fedpatch.shared.app.signals import uninterrupted
from fedpatch.shared.config.fields import NAME
from fedpatch.shared.errors import DataError, UsageError, unknown_name
from fedpatch.shared.tasks.metric_spec import ACCURACY, Goal, MetricTerms, metric_terms

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

ENTRY_POINT_GROUP = "fedpatch.tasks"
MAX_VALIDATION_SHARE = 0.5

_WHERE_IT_LIES = "start the command in the folder that the file lies in, or install the module"
# Packages of version 0.1, which tasks imported from.
_FORMER_PACKAGES = ("coordinator", "device_agent", "shared", "simulator")
_REFERENCE = re.compile(r"(?P<module>[\w.]+):(?P<attribute>[\w.]+)")


@dataclass(frozen=True)
class DeviceData:
    """One device's own examples; they never leave it.

    Args:
        train_x: Training inputs, examples along the first axis, in the model's input dtype.
        train_y: Training targets, one for each input.
        test_x: Test inputs, as `train_x`.
        test_y: Test targets, one for each input.
        counts_in_ua: False for a device whose accuracy says nothing about the model (the paper's noisy clients): it
            trains, and stays out of the mean user accuracy.
        val_x: Validation inputs, on which the agent chooses the personal model; nothing trains on them. None: they are
            split off the training data (`Task.validation_share`, `Task.ordered`). Empty: there are none.
        val_y: Validation targets, one for each input; None where `val_x` is None.
        origin: Function of a field and a row that returns, for messages, where the row came from, such as
            `origin("train_x", 12)`: "readings.csv, line 13".

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
        input_shape: Shape of one (prepared) input; `fedpatch export` needs it, having no data.
        input_dtype: Dtype of an input.
        metric_takes_arrays: `metric` takes NumPy arrays as well as tensors, and imports no torch for them; then
            `fedpatch-agent evaluate` needs no torch either.
        metric_name: Name of the measure.
        metric_goal: "max" if more is better, "min" if less is.
        metric_range: Limits of the measure. None: 0 to 1 for an accuracy, else any finite number.
        data_version: `data_version(spec, root)` tells, at little cost, a version of data that grow: when it changes, a
            device reads its data again before the next round. None: data stay as they are.
        validation_share: Share of the training data, from 0 to 0.5, that is held out for validation where `load_data` gives
            none. 0: none is, and the newest personal model is published.
        ordered: Training examples are in order of time and that matters: then the last ones are held out
            (fedpatch.shared.tasks.validation_split).
        prepare: `prepare(raw)` makes the model's inputs of raw ones: float32 arrays in and out, examples along the first
            axis, each example by itself, with NumPy alone. With it `load_data` returns raw inputs, and fedpatch applies it
            in training, in measuring and in prediction.
        raw_shape: Shape of one raw input where it differs from `input_shape`.
        features: `features(payload)` makes one raw example, an array, of the JSON that comes on a bus (`fedpatch-agent bus`),
            such as a window of readings; with NumPy alone. None: the payload is the example.

    Raises:
        UsageError: The name, batch size, validation share or a term of the metric is not allowed.

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
        _ = self.metric_terms


@dataclass(frozen=True)
class BrokenTask:
    """An installed task that cannot be used, and the reason."""

    name: str
    problem: str


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
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedpatch" / "data"


def check_name(ref: str) -> None:
    """Raise UsageError where `ref` is neither an installed task's name nor of the form module:attribute.

    Imports nothing: whether a task can be loaded is for `find_task` to say.
    """
    if ":" in ref:
        _parse(ref)
    else:
        _candidates(ref)


def find_task(ref: str) -> Task:
    """Return the installed task named `ref`, or the one that `ref` points to as `module:attribute`.

    A module is looked for in the current directory first. Raises UsageError, with the nearest name or with the reason
    why the import failed.
    """
    if ":" in ref:
        match = _parse(ref)
        with _current_directory_importable():
            return _load(f"task {ref!r}", match["module"], match["attribute"], _WHERE_IT_LIES)
    return _load_installed(ref, _candidates(ref))


def _parse(ref: str) -> re.Match[str]:
    match = _REFERENCE.fullmatch(ref)
    if match is None:
        raise UsageError(f"task {ref!r} is neither a name nor module:attribute, such as my_tasks.moons:TASK")
    return match


def _candidates(ref: str) -> Mapping[str, EntryPoint]:
    installed = load_entry_points(ENTRY_POINT_GROUP)
    if ref not in installed:
        if not installed:
            raise UsageError(
                f"unknown task {ref!r}: none is installed here; install fedpatch, or name module:attribute"
            )
        error = unknown_name("task", ref, list(installed))
        raise UsageError(f"{error}; {_how_to_name_a_module(ref)}")
    return installed[ref]


def _how_to_name_a_module(ref: str) -> str:
    stem = ref.removesuffix(".py")
    found = [name for name in (stem, f"{stem}_task") if name.isidentifier() and Path(f"{name}.py").is_file()]
    own = f"the task TASK in {found[0]}.py" if found else "a task of your own"
    return f"{own} is named module:attribute, {f'{found[0]}:TASK' if found else 'such as my_task:TASK'}"


def list_tasks() -> list[Task | BrokenTask]:
    """Return every installed task, sorted by name. One that cannot be loaded is a BrokenTask in the list."""
    tasks: list[Task | BrokenTask] = []
    for name, candidates in sorted(load_entry_points(ENTRY_POINT_GROUP).items()):
        try:
            tasks.append(_load_installed(name, candidates))
        except UsageError as error:
            tasks.append(BrokenTask(name, str(error)))
    return tasks


def _load_installed(name: str, candidates: Mapping[str, EntryPoint]) -> Task:
    if len(candidates) > 1:
        raise UsageError(
            f"task {name!r} is installed more than once, as {' and '.join(sorted(candidates))}; "
            "uninstall one of them, or name module:attribute"
        )
    point = next(iter(candidates.values()))
    source = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    what = f"task {name!r} (entry point {point.value}{source})"
    match = _REFERENCE.fullmatch(point.value)
    if match is None:
        raise UsageError(f"{what}: an entry point must be module:attribute")
    task = _load(what, match["module"], match["attribute"])
    if task.name != name:
        raise UsageError(f"{what}: the task there is named {task.name!r}; give both the same name")
    return task


def _load(what: str, module_name: str, attribute: str, remedy: str = "install its package again") -> Task:
    try:
        with uninterrupted():  # in the middle of torch's import, an exception aborts the process
            disable_ort_telemetry()
            found: Any = import_module(module_name)
    except Exception as error:  # the module is the user's: any error becomes one sentence
        problem = f"{type(error).__name__}: {error}{_remedy(error, module_name, remedy)}"
        raise UsageError(f"{what}: module {module_name!r} cannot be imported: {problem}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            tasks = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Task)]
            hint = f" (tasks there: {', '.join(sorted(tasks))})" if tasks else ""
            raise UsageError(f"{what}: module {module_name!r} has no attribute {attribute!r}{hint}") from None
    if not isinstance(found, Task):
        raise UsageError(f"{what}: {attribute!r} is of type {type(found).__name__}, not a fedpatch.Task")
    return found


def _remedy(error: Exception, module_name: str, remedy: str) -> str:
    """Return the remedy for a missing module: `remedy` for the task's own, else to install the imported package."""
    if not isinstance(error, ImportError) or not error.name:
        return ""
    if error.name.partition(".")[0] in _FORMER_PACKAGES:
        return "; import from fedpatch instead, such as: from fedpatch import DeviceData, Task"
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if f"{module_name}.".startswith(f"{error.name}."):
        return f"; {remedy}"
    package = error.name.partition(".")[0]
    return "" if package == module_name.partition(".")[0] else f"; install {package!r}, which the task imports"


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Put the current directory first on `sys.path` for one import, so that its files shadow no later import."""
    current = os.getcwd()
    sys.path.insert(0, current)
    try:
        yield
    finally:
        with suppress(ValueError):  # the module may have tidied sys.path itself
            sys.path.remove(current)
