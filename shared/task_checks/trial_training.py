"""Trial of one training step and one measurement, to check that model, loss and metric fit the data. It needs torch.

Each error names the part that failed, the arrays with their shapes and dtypes, and the remedy. The trial uses a model of its
own and restores torch's random state.
"""

from __future__ import annotations

import copy
import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpatch.shared.errors import DataError, FedpatchError, UsageError
from fedpatch.shared.tasks.frozen_values import freeze, require_unchanged
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import evaluating, initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import Array, Schema, listing

log = logging.getLogger("fedpatch.data")

_BATCH = 512
_TIMED_STEPS = 5
_COMPARED = 8  # examples of the minibatch whose loss is compared with the mean of their losses


def require_trainable(task: Task, data: DeviceData, holder: str) -> None:
    """Try one training step and one measurement.

    Args:
        data: A device's data, as `fedpatch.shared.task_checks.data_checks.fit` gives them.
        holder: Name of the data's holder for messages, such as "device pi-7".

    Raises:
        DataError: The model refuses the inputs, the loss refuses the targets or is no mean, or the metric is not an allowed
            number.
        UsageError: Two calls of `build_model` give different models, or training changes frozen values.
    """
    with _trial():
        module = require_repeatable(task)
        trial_step(task, module, data, holder)
        if doubt := trial_loss(task, module, data, holder):
            log.warning("%s", doubt)
        trial_metric(task, module, data, holder)


def require_repeatable(task: Task) -> nn.Module:
    """Build the model twice and return it. Raises UsageError if names, shapes, dtypes or roles differ."""
    first, second = _build(task), _build(task)
    one, other = schema_of(first), schema_of(second)
    if one.digest != other.digest:
        raise UsageError(
            f"task {task.name!r}: two calls of build_model give different models ({_difference(one, other)}), so that devices "
            "and coordinator could not agree on one; give every layer a fixed name and size"
        )
    return first


def same_values_for_a_seed(task: Task) -> bool:
    """Return whether initial values depend on torch's seed alone, which coordinator and devices require."""
    first, second = initial_tensors(task, 1), initial_tensors(task, 1)
    return all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)


def trial_step(task: Task, module: nn.Module, data: DeviceData, holder: str) -> float:
    """Make one training step with a minibatch that includes the rows with extreme labels.

    Args:
        module: Model of the task, which is changed.
        holder: Name of the data's holder, for messages.

    Returns:
        The loss.

    Raises:
        DataError: The step failed.
        UsageError: The step changes frozen values.
    """
    rows = _telling_rows(data.train_y, task.batch_size)
    x, y = _tensor(data.train_x[rows], "train_x", holder), _tensor(data.train_y[rows], "train_y", holder)
    module.train()
    outputs = _outputs(task, module, x, f"train_x of {holder}")
    _check_classes(task, outputs)
    try:
        loss: Any = task.loss(outputs, y)
    except FedpatchError:
        raise
    except Exception as error:
        raise DataError(_loss_failed(task, outputs, data, holder, error)) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise DataError(
            f"task {task.name!r}: its loss returned {found}, not a single number that depends on the outputs; return the mean "
            "over the minibatch as a tensor"
        )
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise DataError(
            f"task {task.name!r}: the gradient of its loss failed for {_kind(outputs)} outputs and {_kind(y)} targets of "
            f"{holder}: {_words(error)}; return targets of the dtype that the loss takes"
        ) from error
    require_unchanged(module, task)
    return float(loss.item())


def trial_loss(task: Task, module: nn.Module, data: DeviceData, holder: str) -> str:
    """Compare the loss of a minibatch with the mean of the losses of its examples, for the same outputs.

    Args:
        holder: Name of the data's holder, for messages.

    Returns:
        "" if they agree, or cannot be compared; a sentence where they differ for class numbers, as with weights of the classes.

    Raises:
        DataError: They differ, because outputs and targets broadcast, or the loss is a sum.
    """
    rows = _different_rows(data.train_y)
    if len(rows) < 2:
        return ""
    x, y = _tensor(data.train_x[rows], "train_x", holder), _tensor(data.train_y[rows], "train_y", holder)
    try:
        with evaluating(module), torch.no_grad():
            outputs = module(x)
    except Exception:  # the task's own code; the trial of a step names what fails
        return ""
    # A new model may give all examples nearly the same outputs, which would hide that each meets each target.
    spread = torch.linspace(0.5, 1.0, len(rows), dtype=outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1))
    tried = [outputs * spread]
    if outputs.numel() == y.numel():
        # Right outputs: among the losses of wrong ones, far from the targets, those of other pairs would not be seen.
        tried.append(y.reshape(outputs.shape).to(outputs.dtype))
    return next(filter(None, (_doubt_of_loss(task, one, y) for one in tried)), "")


def _different_rows(targets: Array) -> Array:
    """Return rows of different targets, from the least to the greatest: among equal ones a table of pairs is not seen."""
    order = np.argsort(targets.reshape(len(targets), -1)[:, 0], kind="stable")
    chosen: Array = order[np.linspace(0, len(order) - 1, min(_COMPARED, len(order))).astype(int)]
    return chosen


def _doubt_of_loss(task: Task, outputs: Tensor, y: Tensor) -> str:
    """Compare the loss of all outputs with the mean of their losses, as `trial_loss` says."""
    count = len(y)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of shapes that broadcast, once for each minibatch
            whole, again, twice, turned = (
                float(task.loss(*pair))
                for pair in (
                    (outputs, y),
                    (outputs, y),
                    (torch.cat([outputs, outputs]), torch.cat([y, y])),
                    (outputs, y.roll(1, 0)),
                )
            )
            mean = math.fsum(float(task.loss(outputs[one : one + 1], y[one : one + 1])) for one in range(count)) / count
    except Exception:  # the task's own code: a loss that needs several examples cannot be compared
        return ""
    if not math.isfinite(whole) or not _alike(whole, again) or _alike(whole, mean):
        return ""
    text = (
        f"task {task.name!r}: the loss of a minibatch of {count} is {whole:.4g}, the mean of the losses of its examples "
        f"{mean:.4g}"
    )
    if _alike(whole, mean * count):
        raise DataError(f"{text}, so that it is their sum; return the mean over the minibatch")
    if outputs.shape != y.shape and outputs.numel() == y.numel() and _alike(whole, turned):  # which target is whose?
        raise DataError(
            f"{text}: outputs of shape {_batch(outputs)} and targets of shape {_batch(y)} broadcast to a table of each output "
            f"with each target; {'take outputs[:, 0] in the loss' if outputs.ndim == 2 else 'give both one shape in the loss'}"
        )
    if not math.isfinite(mean):  # a loss that needs several examples, such as a correlation
        return ""
    if y.is_floating_point() or not _alike(whole, twice):
        raise DataError(f"{text}; return the mean over the minibatch, with outputs and targets of one shape")
    return f"{text}; that is right for weights of the classes, else return the mean over the minibatch"


def trial_metric(task: Task, module: nn.Module, data: DeviceData, holder: str, part: str = "test") -> float:
    """Compute the metric of all test examples, or of all validation examples.

    Args:
        holder: Name of the data's holder, for messages.
        part: "test" or "val".

    Returns:
        The metric.

    Raises:
        DataError: The metric failed, is no number, or is beyond its range.
    """
    inputs, targets = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
    y = _tensor(targets, f"{part}_y", holder)
    with evaluating(module), torch.inference_mode():
        parts = [
            _outputs(
                task, module, _tensor(inputs[start : start + _BATCH], f"{part}_x", holder), f"{part}_x of {holder}"
            )
            for start in range(0, len(inputs), _BATCH)
        ]
        outputs = torch.cat(parts)
    words = f"{'validation' if part == 'val' else part} data of {holder}"
    if not bool(torch.isfinite(outputs).all()):
        raise DataError(
            f"task {task.name!r}: outputs for the {words} are not all finite before any training; scale the inputs in the "
            "task's `prepare`, or use other layers"
        )
    try:
        measured = float(task.metric(outputs, y))
    except FedpatchError:
        raise
    except Exception as error:
        raise DataError(
            f"task {task.name!r}: its metric failed for {_kind(outputs)} outputs and {_kind(y)} targets, the {words}: "
            f"{_words(error)}; {_metric_remedy(targets)}"
        ) from error
    terms = task.metric_terms
    broken = math.isnan(measured)
    if broken or (math.isfinite(measured) and not terms.allows(measured)):
        raise DataError(
            f"task {task.name!r}: its metric gave {measured:g} for {words}; `metric` must return {terms.range_words}"
            + (f"; {_metric_remedy(targets)}" if broken else ", or declare metric_name and metric_range")
        )
    return measured


def _metric_remedy(targets: Array) -> str:
    """Return the remedy for a metric without a value, which many metrics have none of with a single class."""
    if targets.ndim == 1 and targets.dtype.kind in "iu" and len(np.unique(targets)) == 1:
        return (
            f"all {len(targets)} examples are of class {targets[0]}: split so that each part has several classes "
            "(stratified_split, shorter blocks), or let `metric` return a value for one class"
        )
    return "correct the metric, or the targets"


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6)


def _batch(tensor: Tensor) -> str:
    return f"({', '.join(map(str, ('n', *tensor.shape[1:])))}{',' if tensor.ndim == 1 else ''})"


def step_seconds(task: Task, module: nn.Module, data: DeviceData) -> float:
    """Measure the duration of a training step.

    Args:
        module: Model of the task; a copy of it is trained, since steps without a chosen learning rate may diverge.

    Returns:
        The median of some steps, in seconds, after one that is not counted.
    """
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)
    rows = np.resize(np.arange(len(data.train_x)), min(task.batch_size, len(data.train_x)))
    x, y = torch.from_numpy(np.array(data.train_x[rows])), torch.from_numpy(np.array(data.train_y[rows]))
    times = []
    module.train()
    for _ in range(1 + _TIMED_STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        task.loss(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - began)
    return median(times[1:])


def begins_with_batch_norm(module: nn.Module) -> bool:
    """Return whether the first layer with parameters is a batch norm, which makes the scale of inputs irrelevant."""
    first = next((part for part in module.modules() if next(part.parameters(recurse=False), None) is not None), None)
    return isinstance(first, nn.modules.batchnorm._BatchNorm)


@contextmanager
def _trial() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def _build(task: Task) -> nn.Module:
    try:
        found: Any = task.build_model()
    except FedpatchError:
        raise
    except Exception as error:
        raise UsageError(f"task {task.name!r}: build_model failed: {_words(error)}; correct it in the task") from error
    if not isinstance(found, nn.Module):
        raise UsageError(f"task {task.name!r}: build_model returned a {type(found).__name__}; return a torch.nn.Module")
    return freeze(found, task)


def _difference(one: Schema, other: Schema) -> str:
    if one.frozen != other.frozen:
        names = listing(one.frozen.names, 3)
        return (
            f"the frozen values {names} are others: draw them from a generator of their own with a fixed seed, or bring them "
            "in a file, Task.frozen_file"
        )
    ours, theirs = ({spec.name: spec for spec in schema.specs} for schema in (one, other))
    if only := sorted(ours.keys() ^ theirs.keys()):
        return f"{listing(only)} in one of them only"
    changed = [name for name in ours if ours[name] != theirs[name]]
    if changed:
        name = changed[0]
        return f"{name} is {ours[name].dtype} {ours[name].shape} in one, {theirs[name].dtype} {theirs[name].shape} in the other"
    return "their tensors stand in another order"


def _telling_rows(targets: Array, batch_size: int) -> Array:
    rows = list(range(min(len(targets), max(2, batch_size))))
    if targets.ndim == 1:
        rows += [int(targets.argmax()), int(targets.argmin())]
    return np.array(sorted(set(rows)))


def _tensor(array: Array, name: str, holder: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(array))
    except TypeError as error:
        raise DataError(
            f"{name} of {holder} is {array.dtype}, which no tensor can hold; return float32 or int64 from load_data"
        ) from error


def _outputs(task: Task, module: nn.Module, x: Tensor, what: str) -> Tensor:
    try:
        outputs: Any = module(x)
    except FedpatchError:
        raise
    except Exception as error:
        if len(x) == 1 and "more than 1 value per channel" in str(error):
            raise DataError(
                f"task {task.name!r}: batch norm cannot learn from one example; give the device training data of at least 2 "
                "examples after those that are held out for validation"
            ) from error
        raise DataError(
            f"the model of task {task.name!r} does not take {what}, {_kind(x)}: {_words(error)}; "
            f"{_input_remedy(task, module, x)}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != x.shape[:1]:
        found = (
            f"a tensor of shape {tuple(outputs.shape)}"
            if isinstance(outputs, Tensor)
            else f"a {type(outputs).__name__}"
        )
        raise DataError(
            f"the model of task {task.name!r} made {found} of {len(x)} examples; return one tensor with a row for each example"
        )
    return outputs


def _input_remedy(task: Task, module: nn.Module, x: Tensor) -> str:
    floating = next((value.dtype for value in module.parameters() if value.is_floating_point()), None)
    if floating is not None and x.is_floating_point() and x.dtype != floating:
        name = str(floating).removeprefix("torch.")
        return f"the model's own values are {name}: declare input_dtype={name!r}, or build it in {x.dtype}"
    if not x.is_floating_point() and not task.input_shape:
        return "declare input_shape and input_dtype, to which inputs are then cast, or return float32 from load_data"
    return "make the first layer and the shape of the inputs agree, and declare input_shape"


def _check_classes(task: Task, outputs: Tensor) -> None:
    if task.class_names and outputs.ndim >= 2 and outputs.shape[1] not in (1, len(task.class_names)):
        raise DataError(
            f"task {task.name!r} names {len(task.class_names)} classes, but its model gives {outputs.shape[1]} outputs for "
            "each example; make the last layer and class_names agree"
        )


def _loss_failed(task: Task, outputs: Tensor, data: DeviceData, holder: str, error: Exception) -> str:
    targets = data.train_y
    if outputs.ndim == 2 and targets.ndim == 1 and targets.dtype.kind in "iu":
        wrong = np.flatnonzero((targets < 0) | (targets >= outputs.shape[1]))
        if len(wrong):
            count = outputs.shape[1]
            return (
                f"train_y of {holder} holds label {targets[wrong[0]]} in row {wrong[0]}, and the model of task {task.name!r} "
                f"has {count} outputs; number the classes from 0 to {count - 1}, or give the last layer more outputs"
            )
    remedy = "make the loss and the shape of the targets agree"
    if outputs.ndim == 2 and targets.ndim == 1 and targets.dtype.kind == "f":
        remedy = (
            "for class numbers return int64 targets or declare class_names, for a number from a model with one output take "
            "outputs[:, 0] in the loss"
        )
    kind = f"{targets.dtype} of shape {tuple(targets.shape)}"
    made = f"{_kind(outputs)} outputs and train_y of {holder}, {kind}"
    return f"task {task.name!r}: its loss failed for {made}: {_words(error)}; {remedy}"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
