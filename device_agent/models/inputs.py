"""Inputs for a model, from files: readings in the format of the task, NumPy arrays, tables of numbers, and images."""

from __future__ import annotations

import csv
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.reading.array_values import pixels_of
from fedpatch.shared.tasks.reading.cell_values import RefusedValue, is_missing, number_in
from fedpatch.shared.tasks.reading.csv_lines import foreign_kind
from fedpatch.shared.tasks.reading.readings_format import ReadingsFormat
from fedpatch.shared.tensors.arrays import Array

IMAGES = (".png", ".bmp", ".jpg", ".jpeg")
KINDS = (".npy", ".csv", *IMAGES)

_NAMED = 6
_HEAD_BYTES = 64


def is_of_readings(path: Path, form: ReadingsFormat | None) -> bool:
    """Return whether a file or folder has readings in the format of the task."""
    return form is not None and (os.path.isdir(path) or path.suffix.lower() not in (".npy", *IMAGES))


def axes_in_words(shape: tuple[int, ...], form: ReadingsFormat | None) -> str:
    """Return the axes of examples in order: "(n examples, 3 inputs: x, y, z, 50 readings)"."""
    words = [str(length) for length in shape]
    if form is not None and shape[:1] == (len(form.inputs),):
        listed = ", ".join(form.inputs[:_NAMED]) + (", ..." if len(form.inputs) > _NAMED else "")
        words[0] = f"{shape[0]} inputs ({listed})"
        if form.window and shape[1:] == (form.window,):
            words[1] = f"{form.window} readings"
    return f"({', '.join(['n examples', *words])})"


def require_shape(examples: Array, shape: tuple[int, ...], form: ReadingsFormat | None, what: str) -> None:
    """Check the shape of examples.

    Args:
        examples: The examples, along the first axis.
        shape: The shape of one example.
        form: The columns and windows of the task's readings; None without.
        what: The examples in words, plural.

    Raises:
        DataError: They have another shape, or are none; the message names the axes in order.
    """
    if examples.shape[1:] == shape and len(examples):
        return
    remedy = (
        "give at least one example"
        if examples.shape[1:] == shape
        else "give one example along the first axis, in this order"
    )
    if form is not None and form.window and examples.ndim == 2 and examples.shape[1] == len(form.inputs):
        remedy = "these are readings: PersonalModel.examples cuts them into windows"
    raise DataError(f"{what} have shape {examples.shape}, the model takes {axes_in_words(shape, form)}; {remedy}")


def read_inputs(path: Path, shape: tuple[int, ...], dtype: str, form: ReadingsFormat | None = None) -> Array:
    """Read the examples in a file.

    `.npy` holds one example or n of them. `.csv` has one example in each row, as numbers of the flattened example; a first
    row without any number is skipped, an empty cell is NaN. An image is one example with values in [0, 1], of shape (3,
    height, width) or (1, height, width), or flat if its pixels make a square; a model of integers takes no image.

    Args:
        shape: Shape of one example.
        dtype: Dtype of the result.
        form: The columns and windows of the task's readings, for messages; None without.

    Returns:
        Array of shape (n, *shape).

    Raises:
        UsageError: The kind of file is unknown, or does not fit the dtype.
        DataError: The file does not fit the model.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise UsageError(f"{path}: is of no kind that can be read; use one of {', '.join(KINDS)}")
    if kind in IMAGES and np.dtype(dtype).kind != "f":
        raise UsageError(f"{path}: pixels are read as fractions from 0 to 1, and the model takes {dtype}; give .npy")
    examples = _loaded(path, kind, shape)
    if examples.shape == shape:
        examples = examples[None]
    size = math.prod(shape)
    if kind == ".csv" and examples.shape[1] == size:
        examples = examples.reshape(-1, *shape)
    if examples.shape[1:] != shape or not len(examples):
        axes = axes_in_words(shape, form)
        if kind == ".csv":
            raise DataError(
                f"{path}: has {len(examples)} rows of {examples.shape[1]} numbers; the model takes {axes}, {size} numbers in "
                "each row; a task that declares its readings (Task.readings) takes files of readings"
            )
        remedy = ""
        if form is not None and examples.ndim == 2 and examples.shape[1] == len(form.inputs):
            remedy = "; these are readings: give them as CSV, which is cut into windows"
        raise DataError(
            f"{path}: has shape {examples.shape}; the model takes shape {axes}, at least one example{remedy}"
        )
    if examples.dtype.kind not in "fiub":
        raise DataError(f"{path}: holds {examples.dtype}, no numbers")
    try:
        return cast_inputs(examples, dtype)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _loaded(path: Path, kind: str, shape: tuple[int, ...]) -> Array:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path}: is no regular file; copy its content into a file")
        return _array(path) if kind == ".npy" else _table(path) if kind == ".csv" else _image(path, shape)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; name a file that this user may read") from error


def cast_inputs(examples: Array, dtype: str) -> Array:
    """Return numbers in the dtype that the model takes; ValueError where a dtype of integers cannot hold one of them."""
    with np.errstate(all="ignore"):
        found = examples.astype(dtype)
    if found.dtype.kind == "f":
        return found
    if examples.dtype.kind == "f" and not np.isfinite(examples).all():
        raise ValueError(f"holds a missing value (NaN) or an infinity; the model takes {dtype}, fill it first")
    lost = found != examples
    if lost.any():
        value = examples[lost].flat[0]
        raise ValueError(f"holds {value:g}, which {dtype} cannot hold; give inputs as the task's load_data does")
    return found


def _array(path: Path) -> Array:
    try:
        with path.open("rb") as stream:
            loaded: Array = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError, MemoryError, BadZipFile) as error:
        raise DataError(f"{path}: is no array of numbers as numpy.save writes it ({error})") from error
    if not isinstance(loaded, np.ndarray):
        raise DataError(f"{path}: is an archive of arrays; give one array, as numpy.save writes it")
    return loaded


def _table(path: Path) -> Array:
    content = path.read_bytes()
    if what := foreign_kind(content[:_HEAD_BYTES]):
        raise DataError(f"{path}: {what.partition(';')[0]}; give the inputs as CSV in UTF-8, or as .npy")
    try:
        text = content.decode("utf-8-sig")  # spreadsheets begin a file with a byte-order mark
        rows = [row for row in csv.reader(text.splitlines(), strict=True) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is no table of numbers as text ({error})") from error
    parsed: list[list[float]] = []
    for number, row in enumerate(rows, 1):
        try:
            parsed.append([number_in(cell) for cell in row])
        except RefusedValue as why:
            if number > 1 or any(map(_is_number, row)):
                column = next(
                    place for place, cell in enumerate(row, 1) if not _is_number(cell) and not is_missing(cell)
                )
                raise DataError(
                    f"{path}: row {number} holds something that is no number: column {column}, {why}{_separated(row)}"
                ) from None
    if not parsed or any(len(row) != len(parsed[0]) for row in parsed):
        raise DataError(f"{path}: its rows differ in length, or there are none; give one example in each row")
    return np.array(parsed)


def _separated(row: Sequence[str]) -> str:
    """Return a remedy if the cells of a row have another separator than a comma."""
    line = ",".join(row)
    for mark in (";", "\t", "|"):
        if mark in line and all(_is_number(cell.replace(",", ".")) for cell in line.split(mark) if cell.strip()):
            return f"; its cells are separated by {mark!r}: separate them by a comma, and write decimals with a point"
    return ""


def _is_number(cell: str) -> bool:
    try:
        return not math.isnan(number_in(cell))
    except RefusedValue:
        return False


def _image(path: Path, shape: tuple[int, ...]) -> Array:
    pillow = import_optional("PIL.Image", f"{path}: Pillow reads images and is not there", "pip install pillow")
    mode, height, width = _picture(path, shape)
    try:
        with pillow.open(path) as image:
            pixels = pixels_of(image)
            if (image.mode == "RGB") != (mode == "RGB"):
                what = (
                    "has colours, and the model takes grey" if mode == "L" else "is grey, and the model takes colours"
                )
                raise DataError(f"{path}: {what}; convert it as the task's load_data does")
    except RefusedValue as why:
        raise DataError(f"{path}: {why}") from None
    except (pillow.UnidentifiedImageError, pillow.DecompressionBombError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: is no image that Pillow can read ({error})") from error
    if pixels.shape[-2:] != (height, width):
        found = f"{pixels.shape[-1]} x {pixels.shape[-2]}"
        raise DataError(f"{path}: has {found} pixels; the model takes {width} x {height}, scale it first")
    return pixels.reshape(shape)


def _picture(path: Path, shape: tuple[int, ...]) -> tuple[str, int, int]:
    """Return Pillow's mode, height and width of an image for examples of this shape."""
    side = math.isqrt(math.prod(shape))
    if len(shape) == 3 and shape[0] in (1, 3):
        return ("RGB" if shape[0] == 3 else "L"), shape[1], shape[2]
    if len(shape) == 2:
        return "L", shape[0], shape[1]
    if len(shape) == 1 and side * side == shape[0]:
        return "L", side, side
    raise UsageError(f"{path}: the model takes examples of shape {shape}, which are no images; give .npy or .csv")
