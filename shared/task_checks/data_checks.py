"""Checks of a device's arrays against its task, and casts to the model's dtypes. This module needs no torch.

An agent, a simulation and an evaluation load data by `load_checked`; `fedpatch check-task` makes the same checks and more.
Each message names the array, its holder, the row, and the remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.examples import complete
from fedpatch.shared.tasks.prepare import prepared
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tensors.arrays import Array

log = logging.getLogger("fedpatch.data")

INPUTS = ("train_x", "val_x", "test_x")
TARGETS = ("train_y", "val_y", "test_y")

_ROWS_AT_ONCE = 4096
_SHOWN = 3
_NUMBERS = "fiub"


@dataclass(frozen=True)
class DataProblem:
    """A problem of a device's arrays, the name of the check that found it, and the remedy."""

    check: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


@dataclass(frozen=True)
class Fitted:
    """A device's data in the form that the model accepts.

    Attributes:
        data: Prepared by the task's `prepare`, in the dtypes that the model and its loss take.
        raw_shape: Shape of one input before `prepare`.
        casts: One sentence for each array that was cast.
    """

    data: DeviceData
    raw_shape: tuple[int, ...]
    casts: tuple[str, ...] = ()


ModelDtype = Callable[[], str]
"""Returns the floating dtype of a model's parameters; it is called only if the task does not declare its input dtype."""


def load_checked(task: Task, spec: str, root: Path, holder: str, model_dtype: ModelDtype | None = None) -> Fitted:
    """Load the data of one device, prepare and cast them, and check them.

    Args:
        spec: The device's data spec.
        root: Folder for data files.
        holder: Name of the data's holder for messages, such as "device pi-7".
        model_dtype: Returns the floating dtype of the model, where the task does not declare its inputs.

    Returns:
        The data, prepared, cast and checked.

    Raises:
        DataError: The arrays are unusable. The message has the first problems and their remedies.
        Exception: Any error of the task's `load_data`.
    """
    return checked(task, task.load_data(spec, root), holder, model_dtype)


def checked(task: Task, data: DeviceData, holder: str, model_dtype: ModelDtype | None = None) -> Fitted:
    """Prepare, cast and check loaded data.

    Args:
        data: Result of the task's `load_data`.
        holder: As for `load_checked`.
        model_dtype: As for `load_checked`.

    Returns:
        The data, prepared, cast and checked.

    Raises:
        DataError: The arrays are unusable.
    """
    fitted = fit(task, data, holder, model_dtype)
    if problems := list(problems_of(task, fitted.data, holder)):
        more = f". Problems beside these: {len(problems) - _SHOWN}" if len(problems) > _SHOWN else ""
        raise DataError(". ".join(map(str, problems[:_SHOWN])) + more)
    return fitted


def arrays_of(data: DeviceData, names: tuple[str, ...] = (*INPUTS, *TARGETS)) -> dict[str, Array]:
    """Return the arrays of a device by name, without absent ones."""
    arrays = {name: getattr(data, name, None) for name in names}
    return {name: array for name, array in arrays.items() if array is not None}


def fit(task: Task, data: DeviceData, holder: str, model_dtype: ModelDtype | None = None) -> Fitted:
    """Apply the task's `prepare`, and cast arrays to the dtypes that the model and its loss take.

    Floating inputs are cast to the task's `input_dtype`, as are small integers, and all integers where the task declares its
    `input_shape`. Class numbers become int64, other floating targets the model's floating dtype.

    Args:
        data: Result of the task's `load_data`.
        holder: As for `load_checked`.
        model_dtype: As for `load_checked`.

    Returns:
        The data, prepared and cast, but not checked.

    Raises:
        DataError: An array holds no numbers, or numbers beyond its new dtype; or `prepare` fails.
    """
    if model_dtype is not None and _is_open(task, data):
        task = replace(task, input_dtype=model_dtype())
    data = _complete(task, data, holder)
    changed: dict[str, Any] = {}
    casts: list[str] = []
    raw_shape: tuple[int, ...] = np.shape(data.train_x)[1:]
    for name, array in arrays_of(data).items():
        what = f"{name} of {holder}"
        numbers = _numbers(name, array, what, data)
        if name in INPUTS:
            ready = prepared(task, numbers, what) if len(numbers) else numbers
            wanted = _input_dtype(task, ready)
        else:
            ready = numbers
            wanted = _target_dtype(task, ready)
        if ready.dtype != wanted:
            casts.append(f"{what} is {ready.dtype} and is cast to {wanted}")
            ready = _cast(ready, wanted, name, what, data)
        if ready is not array:
            changed[name] = ready
    return Fitted(replace(data, **changed) if changed else data, raw_shape, tuple(casts))


def _complete(task: Task, data: DeviceData, holder: str) -> DeviceData:
    """Leave out examples of readings with a missing input, if the task has no `prepare` that could fill it.

    So an empty cell of a file costs its examples and not the round. A part that would be empty stays as it is.
    """
    if task.prepare is not None or data.readings is None:
        return data
    whole = {name: np.flatnonzero(complete(array)) for name, array in arrays_of(data, INPUTS).items()}
    sizes = {name: len(getattr(data, name)) for name in whole}
    lacking = sum(sizes.values()) - sum(map(len, whole.values()))
    if not lacking or not all(map(len, whole.values())):
        return data
    changed: dict[str, Any] = {name: getattr(data, name)[kept] for name, kept in whole.items()}
    changed |= {name.replace("_x", "_y"): getattr(data, name.replace("_x", "_y"))[kept] for name, kept in whole.items()}
    name, kept = next((name, kept) for name, kept in whole.items() if len(kept) < sizes[name])
    first = int(np.setdiff1d(np.arange(sizes[name]), kept)[0])
    note = (
        f"{holder}: examples with a missing input: {lacking}, left out; the first: {place_of(name, first, data)} of {name}; "
        "a `prepare` of the task could fill them"
    )
    log.warning("%s", note)

    def origin(field: str, row: int) -> str:
        kept = whole.get(f"{field.partition('_')[0]}_x")
        return data.origin(field, row if kept is None else int(kept[row])) if data.origin else ""

    return replace(data, **changed, readings=data.readings[whole["train_x"]], origin=origin, notes=(*data.notes, note))


def _is_open(task: Task, data: DeviceData) -> bool:
    """Return whether the task declares no inputs and an array is float64, so that the model's dtype decides."""
    declared = bool(task.input_shape) or task.input_dtype != "float32"
    return not declared and any(array.dtype == np.float64 for array in map(np.asarray, arrays_of(data).values()))


def _numbers(name: str, array: Any, what: str, data: DeviceData) -> Array:
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.getmaskarray(array).any():
            raise DataError(
                f"{what} is a masked array with masked values; fill them with NaN for `prepare`: x.filled(numpy.nan)"
            )
        array = array.data
    try:
        found = np.asarray(array)
    except ValueError as error:
        raise DataError(f"{what} is no array ({error}); give rows of one length in load_data") from error
    if found.dtype.kind in _NUMBERS:
        return found
    row = _first_without_numbers(found)
    where = "" if row is None else f" ({place_of(name, row, data)} holds {_shown(found[row])})"
    raise DataError(
        f"{what} is of dtype {found.dtype}{where}, no numbers; make it numbers in load_data "
        "(fedpatch.examples does it by one rule), words as class numbers, a missing value as NaN for `prepare` to fill"
    )


def _first_without_numbers(found: Array) -> int | None:
    for row, value in enumerate(found):
        try:
            np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return row
    return None


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _input_dtype(task: Task, inputs: Array) -> str:
    """Return the dtype for inputs. Large integers may be token ids: they are cast only if the task declares `input_shape`."""
    large_integers = inputs.dtype.kind in "iu" and inputs.dtype.itemsize >= 4
    return str(inputs.dtype) if large_integers and not task.input_shape else task.input_dtype


def _target_dtype(task: Task, targets: Array) -> str:
    if targets.dtype.kind in "iu" or (targets.dtype.kind == "b" and task.class_names):
        return "int64"
    if targets.dtype.kind == "f" and task.class_names and targets.ndim == 1:
        whole = bool(np.isfinite(targets).all() and (targets == np.round(targets)).all())
        return "int64" if whole else str(targets.dtype)
    if targets.dtype.kind == "f":
        return "float64" if task.input_dtype == "float64" else "float32"
    return str(targets.dtype)


def _cast(array: Array, dtype: str, name: str, what: str, data: DeviceData) -> Array:
    with np.errstate(all="ignore"):
        found = array.astype(dtype)
    if array.dtype.kind == "f" and found.dtype.kind == "f":
        lost = np.isfinite(array) & ~np.isfinite(found)
    elif array.dtype.kind != "b" and found.dtype.kind in "iu":
        lost = found != array
    else:
        return found
    if not lost.any():
        return found
    row = int(np.argwhere(lost)[0][0])
    raise DataError(
        f"{what} is {array.dtype} and holds {_shown(array[lost][0].item())} in {place_of(name, row, data)}, which {dtype} "
        f"cannot hold; scale it, or declare the input_dtype that the model takes"
    )


def input_name(task: Task, data: DeviceData, number: int) -> str:
    """Return the name of an input, or its number where nobody names it.

    Args:
        task: The task; its readings may name the inputs.
        data: Data of a device, which may name them too.
        number: Number of the input, from 0.
    """
    names = data.input_names or (() if task.readings is None else tuple(task.readings.inputs))
    flat = data.train_x.ndim in (2, 3) and data.train_x.shape[1] == len(names)
    return f"input {names[number]}" if flat and number < len(names) else f"feature {number}"


def classes_without_validation(task: Task, data: DeviceData) -> list[str]:
    """Return the classes of the test data of which there is no validation example, if there are validation examples."""
    if not task.class_names or data.val_y is None or not len(data.val_y):
        return []
    tested, chosen = np.asarray(data.test_y), np.asarray(data.val_y)
    if tested.ndim != 1 or tested.dtype.kind not in "iu" or chosen.dtype.kind not in "iu":
        return []
    return [task.class_names[one] for one in np.setdiff1d(tested, chosen).tolist()]


def problems_of(task: Task, data: DeviceData, holder: str) -> Iterator[DataProblem]:
    """Yield the problems of arrays after `fit`: shapes, values, labels.

    Args:
        holder: Name of the data's holder, for messages.

    Yields:
        One problem at a time.
    """
    yield from _shapes(task, data, holder)
    yield from _values(task, data, holder)
    if task.class_names:
        for name, targets in arrays_of(data, TARGETS).items():
            yield from _labels(task, name, targets, data, holder)


def _shapes(task: Task, data: DeviceData, holder: str) -> Iterator[DataProblem]:
    for names in (INPUTS, TARGETS):
        first, *others = arrays_of(data, names).items()
        for name, array in others:
            if len(array) and array.shape[1:] != first[1].shape[1:]:
                yield DataProblem(
                    "shapes",
                    f"{name} of {holder} has examples of shape {array.shape[1:]}, {first[0]} of shape {first[1].shape[1:]}",
                    "give both parts one shape in load_data",
                )
    if task.input_shape and data.train_x.shape[1:] != tuple(task.input_shape):
        remedy = "reshape them in load_data, or correct input_shape"
        if np.prod(data.train_x.shape[1:]) == np.prod(task.input_shape):
            remedy = f"reshape them in load_data with `x.reshape(len(x), {', '.join(map(str, task.input_shape))})`"
        made = " after `prepare`" if task.prepare else ""
        yield DataProblem(
            "shapes",
            f"train_x of {holder} has examples of shape {data.train_x.shape[1:]}{made}, task {task.name!r} declares "
            f"input_shape {tuple(task.input_shape)}",
            remedy,
        )


def _values(task: Task, data: DeviceData, holder: str) -> Iterator[DataProblem]:
    for name, array in arrays_of(data).items():
        bad = _not_finite(array)
        if not len(bad):
            continue
        row = int(bad[0])
        values = np.atleast_1d(array[row]).ravel()
        value = values[~np.isfinite(values)][0]
        word = "NaN" if np.isnan(value) else "inf"
        more = f", and in {len(bad) - 1} more" if len(bad) > 1 else ""
        if name in INPUTS and array.ndim in (2, 3):
            column = input_name(task, data, int(np.argwhere(~np.isfinite(array[row]))[0][0]))
            more = f", {column}{more}" if column.startswith("input ") else more
        fill = "remove or fill it (a task's `prepare` can)" if name in INPUTS else "remove the example or correct it"
        yield DataProblem("values", f"{name} of {holder} holds {word} in {place_of(name, row, data)}{more}", fill)


def _not_finite(array: Array) -> Array:
    """Return the rows that hold NaN or an infinity."""
    if array.dtype.kind != "f":
        return np.empty(0, np.int64)
    found = []
    for start in range(0, len(array), _ROWS_AT_ONCE):
        part = array[start : start + _ROWS_AT_ONCE]
        whole = np.isfinite(part.reshape(len(part), -1)).all(axis=1)
        found.append(start + np.flatnonzero(~whole))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _labels(task: Task, name: str, targets: Array, data: DeviceData, holder: str) -> Iterator[DataProblem]:
    """Check class numbers, one for each example. Targets with further axes, such as probabilities, are not checked."""
    count = len(task.class_names)
    if targets.ndim == 2 and targets.shape[1] == 1 and count > 1:
        text = f"{name} of {holder} has shape {targets.shape}"
        yield DataProblem("labels", text, f"give one class number for each example, with `{name}[:, 0]`")
    if targets.ndim != 1:
        return
    numbers = f"number the {count} classes from 0 to {count - 1} in load_data, or correct class_names"
    if targets.dtype.kind == "f":
        broken = np.flatnonzero(np.isfinite(targets) & (targets != np.round(targets)))
        if len(broken):
            row = int(broken[0])
            text = f"{name} of {holder} holds {targets[row]:g} in {place_of(name, row, data)}, which is no class number"
            yield DataProblem("labels", text, numbers)
        return
    wrong = np.flatnonzero((targets < 0) | (targets >= count))
    if len(wrong):
        row = int(wrong[0])
        more = f", and {len(wrong) - 1} more such labels" if len(wrong) > 1 else ""
        text = f"{name} of {holder} holds label {targets[row]} in {place_of(name, row, data)}{more}; there are {count} classes"
        yield DataProblem("labels", text, numbers)


def place_of(name: str, row: int, data: DeviceData) -> str:
    """Return the row and, if the data have it, its origin.

    Args:
        name: Name of the array in the data, such as `train_x`.
        row: Row of the array, from 0.
    """
    try:
        origin = data.origin(name, row) if data.origin else ""
    except Exception:  # the user's code; only a message depends on it
        origin = ""
    return f"row {row} ({origin})" if origin else f"row {row}"
