"""The reader of pandas frames. Rows have the policy of files: damaged rows are counted and left out, missing inputs are NaN."""

from __future__ import annotations

import datetime
import math
import re
import sys
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.reading.cell_values import (
    GREATEST,
    RefusedValue,
    is_missing,
    number_in,
    number_or_classes,
    shown,
    time_in,
)
from fedpatch.shared.tasks.reading.class_labels import label_reader
from fedpatch.shared.tasks.reading.damaged_rows import DAMAGED_SHARE
from fedpatch.shared.tasks.reading.readings_format import usual_time
from fedpatch.shared.tasks.reading.readings_table import CellReaders, Places, ReadingsTable, TableBuilder

if TYPE_CHECKING:
    import pandas as pd

# A remedy of a file names a setting; a frame was read before.
_SETTING = re.compile("set (?=(?:decimal|delimiter)=)")
_GREATEST_TIME = sys.float_info.max
_HEAD = 10  # rows in one of which a column that is only called like one of times must have a time


def read_frame(
    frame: pd.DataFrame,
    inputs: Sequence[Hashable],
    target: Hashable | None,
    classes: Sequence[Any],
    time: Hashable | None,
    group: Hashable | None,
    name: str,
) -> ReadingsTable:
    """Return the rows of a frame.

    Args:
        inputs: Columns of the inputs.
        target: Column of the target; None without.
        classes: Values of the target that are classes, in the order of their numbers; empty for a number.
        time: Column of the time. None: the one that is found as in a file, or an index of dates.
        group: Column of the group, such as the person; None without.
        name: The frame in messages.

    Raises:
        DataError: A column is absent or stands twice, or no row is left.
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise DataError(f"{name}: is a {type(frame).__name__}; give a pandas.DataFrame")
    columns = list(frame.columns)
    inputs, (target, time, group) = [_plain(one) for one in inputs], map(_plain, (target, time, group))
    asked = [*inputs, *(one for one in (target, time, group) if one is not None)]
    for one in asked:
        _require_column(one, columns, frame.index.names, name)
    found = {one: frame.iloc[:, columns.index(one)].tolist() for one in dict.fromkeys(asked)}
    for one in inputs:
        _require_numbers_or_truths(found[one], one, name)
    unused = ""
    if time is None:
        time, unused = _usual_time(frame, inputs, (target, group), found)
    builder = TableBuilder(
        [str(one) for one in inputs],
        {"target": str(target), "time": str(time), "group": str(group)},
        CellReaders(number_of, _target(target, classes), _time_of, group_of),
        classes=bool(classes),
        damaged_share=DAMAGED_SHARE,
        row_word="row",
    )
    if unused:
        builder.note(f"{name}: no time is used: {unused}")
    positions = {one: place for place, one in enumerate(found)}
    places = Places(
        tuple(positions[one] for one in inputs),
        *(-1 if one is None else positions[one] for one in (target, time, group)),
    )
    builder.begin(name, name)
    for row, cells in enumerate(zip(*found.values(), strict=True)):
        builder.add(cells, places, row)
    if not builder.end():
        raise DataError(builder.failures[0])
    return builder.table()


def number_of(value: Any) -> float:
    """Return the number of a value in a frame; NaN for a missing one. Texts are read as cells of a file are.

    Raises:
        RefusedValue: The value is no finite number of float32.
    """
    if isinstance(value, str):
        try:
            return number_in(value)
        except RefusedValue as why:
            raise RefusedValue(_SETTING.sub("read it with ", str(why))) from None
    if _is_missing(value):
        return math.nan
    if not isinstance(value, int | float | np.number | np.bool_) or isinstance(value, np.complexfloating):
        raise RefusedValue(f"{shown(value)} ({type(value).__name__}) is no number")
    number: Any = value  # an integer of Python may be too large for `float`
    if not abs(number) <= GREATEST:
        raise RefusedValue(f"{shown(value)} is not a finite number of float32")
    return float(number)


def _plain(name: Hashable) -> Hashable:
    """Return the name of a column as Python has it: names from an array or an index of pandas are those of NumPy."""
    return name.item() if isinstance(name, np.generic) else name


def _usual_time(
    frame: pd.DataFrame, inputs: Sequence[Hashable], others: Sequence[Hashable], found: dict[Hashable, list[Any]]
) -> tuple[Hashable | None, str]:
    """Find the time of a frame as that of a file is found, or in an index of dates, and add its values to `found`.

    Returns:
        Its name, None without one, and why a column that is called like a time is not used.
    """
    names = [one for one in frame.columns if isinstance(one, str)]
    column = usual_time(names, inputs, others)
    if column:
        values = frame[column].tolist()
        if refused := _no_times(values[:_HEAD]):
            return None, refused
    elif type(frame.index).__name__ == "DatetimeIndex":
        column, values = "the index", frame.index.tolist()
    else:
        return None, ""
    found[column] = values
    return column, ""


def _no_times(values: Sequence[Any]) -> str:
    """Return why none of these values is a time; "" if one is, or none is refused."""
    refused = ""
    for value in values:
        try:
            if _time_of(value) is not None:
                return ""
        except RefusedValue as why:
            refused = refused or str(why)
    return refused


def _require_numbers_or_truths(values: Sequence[Any], column: Hashable, name: str) -> None:
    truths = sum(isinstance(one, bool | np.bool_) for one in values)
    if truths and truths < sum(not _is_missing(one) for one in values):
        raise DataError(f"{name}: column {column!r} holds True or False beside other values; write 1 and 0")


def _target(target: Hashable | None, classes: Sequence[Any]) -> Any:
    if target is None:
        return None
    return label_reader(classes, _is_missing, lambda value: value) if classes else partial(number_or_classes, number_of)


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, pandas.NA or pandas.NaT, or a text that stands for a missing value."""
    if value is None or isinstance(value, str):
        return value is None or is_missing(value)
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _time_of(value: Any) -> tuple[float, bool] | None:
    if _is_missing(value):
        return None
    if isinstance(value, str):
        return time_in(value)
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp(), True
    if (
        isinstance(value, bool | np.bool_)
        or not isinstance(value, int | float | np.number)
        or not _GREATEST_TIME >= value >= -_GREATEST_TIME
    ):
        raise RefusedValue(f"{shown(value)} is no time; give a number, a datetime or a text of ISO 8601")
    return float(value), False


def group_of(value: Any) -> str:
    """Return the name of a group; "" for a missing one. RefusedValue for what cannot be one."""
    if not isinstance(value, Hashable):
        raise RefusedValue(f"{shown(value)} ({type(value).__name__}) cannot be a group; give a text or a number")
    return "" if _is_missing(value) else str(value)


def _require_column(asked: Hashable, columns: Sequence[Any], index: Sequence[Any], name: str) -> None:
    count = sum(type(one) is type(asked) and one == asked for one in columns)
    if count == 1:
        return
    if count:
        raise DataError(f"{name}: column {asked!r} stands {count} times; rename one of them")
    alike = [one for one in columns if str(one) == str(asked)]
    hint = f"; its name is {alike[0]!r}, a {type(alike[0]).__name__}: write it so" if alike else ""
    if not alike and asked in index:
        hint = "; it is the index: give frame.reset_index()"
    raise DataError(f"{name}: no column {asked!r}; there is {', '.join(map(repr, columns[:12]))}{hint}")
