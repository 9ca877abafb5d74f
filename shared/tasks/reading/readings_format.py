"""`ReadingsFormat`: columns, windows and damaged lines of a device's files, the same in training and in prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal, TypedDict, TypeVar, get_args

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.reading.damaged_rows import DAMAGED_SHARE, require_share

T = TypeVar("T")
Mixed = Literal["last", "drop"]
TIME_NAMES = ("time", "timestamp", "datetime", "date", "t")
"""Names of the column of the time where nobody names one, in the order in which they are looked for."""

_TEMPERATURE = "t"
"""The one of these names that an input may have which is no time."""


class FilePolicy(TypedDict, total=False):
    """Fields of `ReadingsFormat` that say how a file is read."""

    time: str
    group: str
    names: Sequence[str]
    delimiter: str
    decimal: str
    comment: str
    damaged_share: float


@dataclass(frozen=True)
class ReadingsFormat:
    """Columns of a device's files of readings, and how the readings become examples.

    A task that gives its format as `Task.readings` takes the same files in `fedpatch-agent predict` and in `PersonalModel`.

    Args:
        inputs: Columns of the inputs, which hold numbers.
        target: Column of the target. "": none.
        classes: Values of the target; the class of an example is the position of its value. Empty: targets are numbers.
        time: Column of the time, a number or a date of ISO 8601. "": the column with the name time, timestamp, datetime, date
            or t, if there is one.
        group: Column of the group (a person, a session, a machine). "": none.
        names: Columns of files without a header line, in order. Empty: the first line names the columns.
        delimiter: Character between two values; " " stands for any blanks.
        decimal: Decimal mark, "." or ",".
        comment: Lines that begin with it are ignored. "": no line is.
        damaged_share: Share of the lines of a file above which the file is refused.
        window: Readings in a window. 0: each reading is an example.
        stride: Readings between the beginnings of two windows. 0: `window`, so that no two windows share a reading.
        max_gap: Longest time between two readings of a window, in the unit of the times (seconds for dates). 0: one and a half
            times the usual one.
        mixed: Windows in which the class changes have the class of their "last" reading, or are left out ("drop").

    Raises:
        UsageError: A column, a class or a mark is not allowed, or is named twice.

    Example:
        >>> from fedpatch import examples
        >>> examples.ReadingsFormat(inputs=["x", "y"], target="state", classes=["rest", "walk"], window=50).step
        50
    """

    inputs: Sequence[str]
    target: str = ""
    classes: Sequence[str] = ()
    time: str = ""
    group: str = ""
    names: Sequence[str] = ()
    delimiter: str = ","
    decimal: str = "."
    comment: str = "#"
    damaged_share: float = DAMAGED_SHARE
    window: int = 0
    stride: int = 0
    max_gap: float = 0.0
    mixed: Mixed = "last"

    def __post_init__(self) -> None:
        for name in ("inputs", "classes", "names"):
            object.__setattr__(self, name, names_of(name, getattr(self, name)))
        for name in ("target", "time", "group", "delimiter", "decimal", "comment"):
            if not isinstance(value := getattr(self, name), str):
                raise UsageError(f"{name} is {value!r}, a {type(value).__name__}; give a text, or leave it out")
        if not self.inputs:
            raise UsageError("no columns are given as inputs; name the columns that the model sees")
        if self.target and self.target in self.inputs:
            raise UsageError(f"column {self.target!r} is an input and the target; the model would see its answer")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n' or self.delimiter == self.decimal:
            raise UsageError(
                f"delimiter is {self.delimiter!r}; use one character, such as ',', ';' or '\\t', beside the decimal mark"
            )
        if self.decimal not in (".", ","):
            raise UsageError(f"decimal is {self.decimal!r}; use '.' or ','")
        require_share(self.damaged_share)
        require_window(self.window or 1, self.stride or 1, self.max_gap, self.mixed)
        if self.names and (absent := [one for one in self.needed if one not in self.names]):
            raise UsageError(f"names has no {', '.join(absent)}; it must name all columns of the file, in order")

    @property
    def step(self) -> int:
        """Readings between the beginnings of two windows."""
        return self.stride or max(1, self.window)

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns that a file of training must have."""
        return tuple(dict.fromkeys(one for one in (*self.inputs, self.target, self.time, self.group) if one))

    def for_prediction(self) -> ReadingsFormat:
        """Return the format for files whose target is not read."""
        return replace(self, target="", classes=())


def usual_time(columns: Sequence[str], inputs: Sequence[object], others: Sequence[object]) -> str:
    """Return the column that has a usual name of a time, in any capitals; "" without one.

    Args:
        columns: All columns.
        inputs: Those of the inputs.
        others: Those of the target and of the group, which are no times.
    """
    lower = [one.lower() for one in columns]
    named = [columns[lower.index(name)] for name in TIME_NAMES if lower.count(name) == 1]
    free = [one for one in named if one not in others and (one.lower() != _TEMPERATURE or one not in inputs)]
    return next(iter(free), "")


def names_of(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns or classes. Raise UsageError for one text, for other values than texts, and for a name twice."""
    found = in_order(what, names)
    for one in found:
        if not isinstance(one, str):
            raise UsageError(
                f"{what} has {one!r}, a {type(one).__name__}; cells of a file are text, so write {str(one)!r}"
            )
    require_once(what, found)
    return found


def in_order(what: str, values: Sequence[T]) -> tuple[T, ...]:
    """Return the values of a list.

    Raises:
        UsageError: It is one text, or has no order, as a set: each device would number the classes in its own way.
    """
    if isinstance(values, str | bytes):
        raise UsageError(f"{what} is {values!r}, one text; give a list, such as [{values!r}]")
    if isinstance(values, Set | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{what} is a {type(values).__name__}, which has no order of values; give a list")
    return tuple(values)


def require_once(what: str, found: Sequence[object]) -> None:
    """Raise UsageError for a name that stands twice."""
    seen: list[object] = []
    for one in found:
        if one in seen:
            raise UsageError(f"{what} has {one!r} twice; name each once")
        seen.append(one)


def require_window(length: int, stride: int, max_gap: float, mixed: str) -> None:
    """Check a window.

    Args:
        length: Readings of a window.
        stride: Readings from one window to the next.
        max_gap: Longest time between two readings of a window, in the unit of the times.
        mixed: Label of a window in which the label changes: `last`, or `drop` for none.

    Raises:
        UsageError: The window cannot be cut.
    """
    if not all(isinstance(one, Integral) and not isinstance(one, bool) for one in (length, stride)):
        raise UsageError(f"windows of length {length!r} and stride {stride!r}; both must be integers")
    if length < 1 or stride < 1:
        raise UsageError(f"windows of length {length} and stride {stride}; both must be at least 1")
    if not isinstance(max_gap, Real) or not max_gap >= 0:
        raise UsageError(f"max_gap is {max_gap!r}; it must be a number of at least 0")
    if mixed not in get_args(Mixed):
        raise UsageError(f"mixed is {mixed!r}; use 'last' or 'drop'")
