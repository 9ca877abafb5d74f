"""All checks of `fedpatch check-task`, one finding each. This module needs torch.

An agent and a simulation refuse to start with data that fail a check. Only the command makes the checks that merely warn.
"""

from __future__ import annotations

import resource
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from fedpatch.shared.app.formatting import duration, size
from fedpatch.shared.diagnostics.checks import Checkup, error_text
from fedpatch.shared.diagnostics.host import check_memory
from fedpatch.shared.errors import DataError, ExportRefused, FedpatchError, UpdateRefused, UsageError
from fedpatch.shared.task_checks.data_checks import (
    INPUTS,
    Fitted,
    arrays_of,
    classes_without_validation,
    fit,
    input_name,
    place_of,
    problems_of,
)
from fedpatch.shared.task_checks.trial_training import (
    begins_with_batch_norm,
    require_repeatable,
    same_values_for_a_seed,
    step_seconds,
    trial_loss,
    trial_metric,
    trial_step,
)
from fedpatch.shared.task_checks.trial_update import trial_update
from fedpatch.shared.tasks.input_statistics import statistics_of
from fedpatch.shared.tasks.prepare import prepared
from fedpatch.shared.tasks.reading.readings_table import notes_unlogged
from fedpatch.shared.tasks.separation import copies, sharing_runs
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import floating_dtype, resolve_private, schema_of
from fedpatch.shared.tasks.validation_split import split_for
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.schema import Frozen
from fedpatch.shared.wire.messages import TrainPlan

_MOSTLY = 0.9
_LARGE = 100.0
_SLOW_ROUND_S = 60.0
_SHOWN = 8
_FEW_ROWS, _FEW_SHARE = 5, 0.01
_LONG_RUN, _LONG_SHARE = 20, 0.05
_BY_CHANCE = 0.1  # share of windows that may have readings in common with others, such as parts of pictures
_EXPORTED = 16
_FEW_FEATURES = 32  # of more features, such as pixels of an image, some are usually constant
# Model, gradients, both moments of Adam, the update and its packed form, beside the memory in use already.
_MODELS_IN_MEMORY = 8


@dataclass(frozen=True)
class Question:
    """The subject of the checks.

    Attributes:
        task: The task.
        spec: The data of one device.
        root: The folder of data sets.
        private: The patch policy of the planned runs.
        plan: Their training plan; None where the task names no learning rate for their strategy.
    """

    task: Task
    spec: str
    root: Path
    private: str = "affine"
    plan: TrainPlan | None = None

    @property
    def holder(self) -> str:
        """Name of the data's holder, for messages."""
        return f"data {self.spec!r}"


def data_of(task: Task, spec: str) -> str:
    """Return the data spec to check: `spec`, or else device 0 of the task's demo. Raises UsageError without either."""
    template = task.demo_data or task.simulation_data
    if not spec and not template:
        raise UsageError(f"task {task.name!r} has no demo_data to check; name a device's data with --data")
    return spec or template.format(index=0, count=10, seed=0)


def examine_task(question: Question, checkup: Checkup) -> None:
    """Make all checks that are possible."""
    task = question.task
    checkup.good("task", f"{task.name}: {task.description}")
    module = _check_model(task, question.private, checkup)
    data = _load(question, checkup)
    if data is None:
        return
    _check_prepare(question, data, checkup)
    fitted = _check_arrays(question, data, checkup)
    if fitted is None or module is None:
        return
    _check_inputs(question, fitted.data, module, checkup)
    if _check_step(question, fitted.data, module, checkup):
        _check_update(question, fitted.data, checkup)
        _check_export(fitted.data, module, checkup)


def _check_model(task: Task, private: str, checkup: Checkup) -> nn.Module | None:
    try:
        module = require_repeatable(task)
        schema = schema_of(module)
    except FedpatchError as error:
        of_file = "put the file of the frozen values below the data folder, or correct frozen_file in the task"
        remedy = of_file if isinstance(error, DataError) else "correct build_model, or frozen, in the task"
        checkup.fail("model", error_text(error), remedy)
        return None
    values = sum(int(np.prod(spec.shape)) for spec in schema.specs)
    built = f"{len(schema.names)} tensors with {values} values, schema {schema.digest[:12]}"
    if same_values_for_a_seed(task):
        checkup.good("model", f"built twice with the same names: {built}")
    else:
        text = f"built twice with the same names but other values for one seed: {built}"
        checkup.warn("model", text, "let build_model draw its values from torch's random state alone")
    if schema.frozen.names:
        _check_frozen(task, schema.frozen, checkup)
    try:
        names = resolve_private(private, module, task.head).private_names(schema)
    except UsageError as error:
        remedy = "put a batch norm into the model, or choose --private none or names:GLOB,..., here and for the run"
        checkup.fail("patch", error_text(error), remedy)
        return module
    kept = (
        f"{len(names)} of {len(schema.names)} tensors stay on the device" if names else "no tensor stays on the device"
    )
    checkup.good("patch", f"with private {private}, {kept}")
    return module


def _check_frozen(task: Task, frozen: Frozen, checkup: Checkup) -> None:
    if task.frozen_file is None:
        checkup.good("frozen", f"{frozen}, of build_model")
    else:
        checkup.good("frozen", f"{frozen}, of {task.frozen_file.folder}/{task.frozen_file.name}")


def _load(question: Question, checkup: Checkup) -> DeviceData | None:
    task = question.task
    try:
        with notes_unlogged():
            data = task.load_data(question.spec, question.root)
    except FedpatchError as error:
        action = "correct or complete the files" if isinstance(error, DataError) else "correct --data, or put the files"
        remedy = f"{action} below {question.root} (--data-root names another place)"
        checkup.fail("data", error_text(error), remedy)
        return None
    except Exception as error:  # the task is the user's
        frame = next(reversed(traceback.extract_tb(error.__traceback__)))
        text = " ".join(f"load_data failed for {question.holder}: {type(error).__name__}: {error}".split())
        checkup.fail("data", text, f"correct load_data ({Path(frame.filename).name}, line {frame.lineno})")
        return None
    counts = ", ".join(f"{len(array)} in {name}" for name, array in arrays_of(data, INPUTS).items())
    if len(data.train_x) < task.batch_size:
        text = f"{counts}; a minibatch has {task.batch_size}"
        checkup.warn("data", text, "collect more examples, or lower the task's batch_size")
    else:
        checkup.good("data", f"{question.holder} below {question.root}: {counts}")
    for note in data.notes:
        checkup.warn("left out", note, "correct the file or its logger, if there are many")
    return data


def _check_prepare(question: Question, data: DeviceData, checkup: Checkup) -> None:
    if question.task.prepare is None:
        checkup.skip("prepare", "the task has no prepare: an application gives the model what load_data returns")
        return
    raw = np.asarray(data.train_x[: min(len(data.train_x), 64)])
    if raw.dtype.kind not in "fiub":
        checkup.skip("prepare", "train_x holds no numbers")
        return
    try:
        together, alone = (
            prepared(question.task, raw, "train_x"),
            prepared(question.task, raw[:1], "one row of train_x"),
        )
    except FedpatchError as error:
        checkup.fail("prepare", error_text(error), "correct prepare in the task; it gets float32 and uses NumPy alone")
        return
    if np.allclose(together[:1], alone, rtol=1e-4, atol=1e-5, equal_nan=True):
        checkup.good("prepare", f"makes inputs of shape {together.shape[1:]} of raw ones of shape {raw.shape[1:]}")
    else:
        text = "prepare gives one example other values alone than among others"
        checkup.fail("prepare", text, "scale by constants, not by the mean or the range of the rows at hand")


def _check_arrays(question: Question, data: DeviceData, checkup: Checkup) -> Fitted | None:
    task = question.task
    try:
        with notes_unlogged():
            fitted = fit(task, data, question.holder, lambda: floating_dtype(task))
    except FedpatchError as error:
        checkup.fail(
            "dtype", error_text(error), "return arrays of float32, and int64 for class numbers, from load_data"
        )
        return None
    for note in fitted.data.notes[len(data.notes) :]:
        checkup.warn("left out", note, "fill missing values in the task's prepare, if there are many")
    kinds = ", ".join(f"{name} {array.dtype}" for name, array in arrays_of(fitted.data).items())
    checkup.good("dtype", "; ".join(fitted.casts) or kinds)
    problems = list(problems_of(task, fitted.data, question.holder))
    for one in problems:
        checkup.fail(one.check, one.text, one.remedy)
    failed = {one.check for one in problems}
    shapes = f"examples of shape {fitted.data.train_x.shape[1:]}, targets of shape {fitted.data.train_y.shape[1:]}"
    for name, words in (("shapes", shapes), ("values", "all are finite")):
        if name not in failed:
            checkup.good(name, words)
    if "labels" not in failed and "values" not in failed:
        _check_balance(task, fitted.data, checkup)
    return None if problems else fitted


def _check_balance(task: Task, data: DeviceData, checkup: Checkup) -> None:
    targets, tested = data.train_y, data.test_y
    if not (task.class_names and targets.ndim == 1 and targets.dtype.kind in "iu"):
        checkup.skip("classes", "the task declares no class_names, or its targets are no class numbers")
        return
    names = task.class_names
    counts = np.bincount(targets, minlength=len(names))
    shown = _some([f"{names[one]} {counts[one]}" for one in np.argsort(-counts, kind="stable") if counts[one]])
    text = f"{np.count_nonzero(counts)} of {len(names)} classes in training: {shown}"
    most = int(counts.argmax())
    unseen = sorted(set(np.unique(tested).tolist()) - set(np.flatnonzero(counts).tolist()))
    if np.count_nonzero(counts) == 1:
        checkup.warn("classes", text, "collect examples of other classes too; one class teaches nothing")
    elif unseen:
        text = f"{text}; tested on {_some([names[one] for one in unseen])} without training on it"
        checkup.warn("classes", text, "split by class (fedpatch.splits.stratified_split), or collect more examples")
    elif counts[most] > _MOSTLY * len(targets):
        text = f"{text}; to answer {names[most]!r} always is right in {counts[most] / len(targets):.0%}"
        checkup.warn("classes", text, "measure with fedpatch.metrics.macro_f1, or collect more of the other classes")
    else:
        checkup.good("classes", text)


def _check_validation(question: Question, data: DeviceData, module: nn.Module, checkup: Checkup) -> None:
    """Check that the examples that choose the personal model have the classes of the test data, and a metric."""
    task, split = question.task, split_for(question.task, data)
    if split.val_x is None or split.val_y is None or not len(split.val_x):
        return
    if lacking := classes_without_validation(task, split):
        text = (
            f"{len(split.val_x)} validation examples lack {_some(lacking)} of the classes of the test data, so that they "
            "would choose the personal model by the others"
        )
        remedy = (
            "give load_data validation data of each class (val_x, val_y), take shorter blocks, or validation_share=0"
        )
        checkup.warn("validation", text, remedy)
    try:
        trial_metric(task, module, split, question.holder, "val")
    except FedpatchError as error:
        checkup.fail("validation", error_text(error), "give other validation data, or correct the metric")


def _some(words: Sequence[str]) -> str:
    """Return the first words, and how many more there are."""
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _check_inputs(question: Question, data: DeviceData, module: nn.Module, checkup: Checkup) -> None:
    """Check the scale of the inputs, and that no test example is also a training example."""
    if data.train_x.dtype.kind == "f":
        known = statistics_of(data.train_x)
        largest = float(max(np.abs(known.mean).max(), max(known.std)))
        constant = np.flatnonzero(np.asarray(known.std) == 0)
        if largest > _LARGE and not begins_with_batch_norm(module):
            text = f"inputs are as large as {largest:.3g} on average, which makes training slow or diverge"
            checkup.warn("inputs", text, "scale them in the task's `prepare`, or begin the model with a batch norm")
        elif len(constant) and 1 < len(known.std) <= _FEW_FEATURES:
            text = f"{_some([input_name(question.task, data, int(one)) for one in constant])} has one value in all of train_x"
            checkup.warn("inputs", text, "look whether that sensor works, or leave the feature out")
        else:
            per = "each feature" if len(known.std) > 1 else "all values"
            checkup.good("inputs", f"mean and deviation of {per} are at most {largest:.3g}")
    _check_rows(data, checkup)
    _check_separation(data, "test", checkup)
    if data.val_x is not None and len(data.val_x):
        _check_separation(data, "validation", checkup)


def _check_separation(data: DeviceData, part: str, checkup: Checkup) -> None:
    """Warn of test or validation examples that are training examples too, or overlap with them."""
    examples = data.test_x if part == "test" else data.val_x
    assert examples is not None
    if twice := int(copies(examples, data.train_x).sum()):
        text = f"{twice} of {len(examples)} {part} examples are training examples too, so that the accuracy is too good"
        remedy = (
            "remove duplicates before splitting (Examples.device_data leaves them out); fedpatch.splits splits by time, block "
            "or group"
        )
        checkup.warn("split", text, remedy)
    elif near := _shared_windows(data, examples):
        text = f"{near} of {len(examples)} {part} examples share readings with training examples, as windows that overlap do"
        remedy = "split the windows with splits.block_split or time_split, and give both masks to Examples.device_data"
        checkup.warn("split", f"{text}, so that the accuracy is too good", remedy)
    else:
        checkup.good("split", f"no {part} example is a training example")


def _shared_windows(data: DeviceData, examples: Array) -> int:
    """Return how many examples share readings with training examples, where nobody knows their readings."""
    if data.readings is not None:
        return 0
    near = int(sharing_runs(examples, data.train_x).sum())
    # Backwards nothing overlaps: so many windows of a coarse sensor have the same readings by chance.
    backwards = np.flip(examples, tuple(range(1, examples.ndim)))
    chance = int(sharing_runs(backwards, data.train_x).sum()) if near else 0
    return near if near - chance > _BY_CHANCE * len(examples) else 0


def _check_rows(data: DeviceData, checkup: Checkup) -> None:
    """Warn of rows that a sensor that is off would give: all zero, or equal to the row before for long."""
    rows = data.train_x.reshape(len(data.train_x), -1)
    zero = np.flatnonzero(~rows.any(axis=1))
    if len(zero) >= max(_FEW_ROWS, _FEW_SHARE * len(rows)):
        first = place_of("train_x", int(zero[0]), data)
        text = f"{len(zero)} of {len(rows)} rows of train_x are all zero, the first in {first}"
        checkup.warn("rows", text, "look whether the sensor was on; leave these rows out, or mark them as missing")
    if rows.shape[1] < 2 or len(rows) < 2:
        return
    change = np.flatnonzero([True, *(rows[1:] != rows[:-1]).any(axis=1), True])
    longest = int(np.diff(change).argmax())
    count, begin = int(np.diff(change)[longest]), int(change[longest])
    if count >= max(_LONG_RUN, _LONG_SHARE * len(rows)) and rows[begin].any():
        text = f"one row repeats {count} times in train_x, from {place_of('train_x', begin, data)} on"
        checkup.warn("rows", text, "look whether the sensor was stuck; leave the repeated rows out")


def _check_step(question: Question, data: DeviceData, module: nn.Module, checkup: Checkup) -> bool:
    task = question.task
    try:
        loss = trial_step(task, module, data, question.holder)
    except FedpatchError as error:
        checkup.fail("step", error_text(error), "correct the task, then check again")
        return False
    if not np.isfinite(loss):
        checkup.fail("step", f"the loss of the first step is {loss}", "scale inputs and targets, or correct the loss")
        return False
    try:
        if doubt := trial_loss(task, module, data, question.holder):
            checkup.warn("loss", doubt, "weigh the classes in the loss only if that is meant")
    except FedpatchError as error:
        checkup.fail("loss", error_text(error), "correct the loss, then check again")
    step_s = step_seconds(task, module, data)
    steps = max(1, round(len(data.train_x) / task.batch_size))
    text = f"{1e3 * step_s:.3g} ms a minibatch of {task.batch_size}, {_time(steps * step_s)} a round of one pass, here"
    if steps * step_s > _SLOW_ROUND_S:
        checkup.warn("step", text, "make the model smaller, or let runs take fewer minibatches with --steps")
    else:
        checkup.good("step", text)
    try:
        measured = trial_metric(task, module, data, question.holder)
        words = f"{task.metric_name} {measured:.4g} before any training"
        if np.isfinite(measured):
            checkup.good("metric", words)
        else:
            remedy = "let `metric` return a finite number, such as without a division by targets of zero"
            checkup.warn("metric", f"{words}; a round fails in which it is still not finite", remedy)
    except FedpatchError as error:
        checkup.fail("metric", error_text(error), "correct the metric or the split, then check again")
    else:
        _check_validation(question, data, module, checkup)
    _check_memory(data, module, checkup)
    return True


def _check_update(question: Question, data: DeviceData, checkup: Checkup) -> None:
    """Train some steps by the plan, and check the update as the coordinator will."""
    if question.plan is None:
        text = "no update was tried: the task names no learning rate for the strategy in learning_rates"
        checkup.skip("update", text)
        return
    try:
        trial = trial_update(question.task, data, question.plan, question.private)
    except UpdateRefused as error:
        remedy = "scale inputs and targets (a constant in the task's `prepare`), or choose a smaller learning rate"
        checkup.fail("update", error_text(error), remedy)
        return
    except FedpatchError as error:
        checkup.fail("update", error_text(error), "correct the task, then check again")
        return
    checkup.good("update", f"{trial.words}; the coordinator's checks accept the update")


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _check_memory(data: DeviceData, module: nn.Module, checkup: Checkup) -> None:
    arrays = sum(array.nbytes for array in arrays_of(data).values())
    model = sum(value.nbytes for value in module.state_dict().values())
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    what = f"beside this process, which held {size(held)}, of it data {size(arrays)}, a round with a model of {size(model)}"
    check_memory(_MODELS_IN_MEMORY * model, what, checkup)


def _check_export(data: DeviceData, module: nn.Module, checkup: Checkup) -> None:
    from fedpatch.shared.onnx.export import export_onnx, torch_outputs
    from fedpatch.shared.onnx.runtime import OnnxModel, require_parity

    samples = data.test_x[:_EXPORTED]
    try:
        exported = export_onnx(module, samples[:1])
        model = OnnxModel(exported.model, "the exported model")
        parity = require_parity(model, samples, torch_outputs(module, samples))
    except ExportRefused as error:
        checkup.warn("onnx", error_text(error), "use other layers; without ONNX a device has no personal model")
    except FedpatchError as error:
        checkup.skip("onnx", error_text(error))
    else:
        checkup.good("onnx", f"{size(len(exported.model))}, as exact as {parity:.1g}: a device gets a personal model")
