"""The class of a cell: a value that is none of the task's classes is refused, with the spelling that is nearly one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedpatch.shared.tasks.reading.cell_values import RefusedValue, number_in, plain_spelling

_LISTED = 5


def label_reader(
    classes: Sequence[Any], is_missing: Callable[[Any], bool], plain: Callable[[Any], Any]
) -> Callable[[Any], float]:
    """Return a function from a cell to the number of its class; NaN for a missing one.

    Args:
        classes: The classes, in the order of their numbers.
        is_missing: Whether a cell is missing.
        plain: Makes the value of a cell comparable with a class.
    """
    numbers = {(_is_truth(one), one): number for number, one in enumerate(classes)}
    names = ", ".join(map(str, classes[:_LISTED])) + (
        f" and {len(classes) - _LISTED} more" if len(classes) > _LISTED else ""
    )

    def read(cell: Any) -> float:
        value = plain(cell)
        try:
            found = numbers.get((_is_truth(value), value))
        except TypeError:
            raise RefusedValue(
                f"{value!r} ({type(value).__name__}) cannot be a class; the classes are {names}"
            ) from None
        if found is not None:
            return found
        if is_missing(value):
            return math.nan
        raise RefusedValue(f"{value!r} is none of the classes {names}{_class_hint(value, classes)}")

    return read


def _is_alike(one: str, other: str) -> bool:
    """Return whether two texts are the same to a reader, or the same number."""
    if plain_spelling(one) == plain_spelling(other):
        return True
    try:
        return number_in(one) == number_in(other)
    except RefusedValue:
        return False


def _is_truth(value: object) -> bool:
    """Return whether a value is True or False, which equal the numbers 1 and 0 in Python."""
    return isinstance(value, bool | np.bool_)


def _class_hint(value: Any, classes: Sequence[Any]) -> str:
    """Return the remedy for a value that is nearly a class; "" for another one."""
    if not isinstance(value, str):
        if any(one == value or one == str(value) for one in classes):
            kind, remedy = ("True or False", "these") if _is_truth(value) else ("a number", "numbers")
            return f"; it is {kind} here, so give classes as {remedy}, such as [{value!r}]"
        return ""
    if any(not isinstance(one, str) and str(one) == value for one in classes):
        return f"; it is a text here, so give classes as texts, such as [{value!r}]"
    alike = [one for one in classes if isinstance(one, str) and _is_alike(one, value)]
    return f"; {alike[0]!a} is spelled {value!a} here: use one of them" if alike else ""
