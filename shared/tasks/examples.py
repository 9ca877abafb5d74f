"""Examples of a device from CSV files, pandas frames or data sets: checked, cut into windows, and made into DeviceData.

    def load_data(spec, root):
        table = examples.read_csv(root / spec, inputs=["x", "y", "z"], target="state", classes=["rest", "walk"])
        windows = examples.windows(table, length=50, stride=25)
        _, test = splits.block_split(len(windows), block=20)
        return windows.device_data(test)

Each example knows its file and row, so that a message about a bad value names both.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.task import DeviceData

if TYPE_CHECKING:
    import pandas as pd

_GREATEST = float(np.finfo(np.float32).max)
LEAST_EXAMPLES = 5
"""Fewer examples of a device measure nothing."""


class MapStyle(Protocol):
    """A data set with an item for each position, as those of torchvision and of Hugging Face."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, position: int) -> Any:
        """Return an item."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, with the place of each.

    Args:
        x: Inputs of shape (n, ...), float32.
        y: Targets of shape (n,), int64 for classes and float32 for numbers.
        sources: Names of the files, frames or data sets.
        source: Index in `sources` of each example.
        row: Row of each example: the line of a CSV file, counted from 1, or the position in a frame or a data set.
        row_word: The word for a row in messages: "line", "row" or "item".
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    sources: tuple[str, ...]
    source: NDArray[np.int64]
    row: NDArray[np.int64]
    row_word: str = "line"

    def __len__(self) -> int:
        return len(self.x)

    def place(self, index: int) -> str:
        """Return where an example came from: "monday.csv, line 13"."""
        return f"{self.sources[self.source[index]]}, {self.row_word} {self.row[index]}"

    def take(self, chosen: ArrayLike) -> Examples:
        """Return the examples of a boolean mask or of positions, such as a shard of `fedpatch.splits`."""
        kept = np.asarray(chosen)
        return Examples(self.x[kept], self.y[kept], self.sources, self.source[kept], self.row[kept], self.row_word)

    def device_data(
        self,
        test: ArrayLike,
        train: ArrayLike | None = None,
        *,
        balance_seed: int | None = None,
        allow_constant: bool = False,
    ) -> DeviceData:
        """Return the data of a device.

        Args:
            test: Mask of the test examples, as of `fedpatch.splits`.
            train: Mask of the training examples; None: all others.
            balance_seed: Repeat training examples of rare classes, drawn with this seed, until all classes have as many as
                the most frequent one. None: leave them as they are.
            allow_constant: Whether an input may have the same value in all training examples. Else that is an error: the sensor
                is stuck or not connected.

        Raises:
            DataError: There are fewer than LEAST_EXAMPLES, one part is empty, or an input is constant.
        """
        if len(self) < LEAST_EXAMPLES:
            where = ", ".join(self.sources) or "the data"
            raise DataError(f"{where}: {len(self)} examples; a device needs at least {LEAST_EXAMPLES}, so collect more")
        mask = np.asarray(test, bool)
        training, testing = self.take(~mask if train is None else np.asarray(train, bool)), self.take(mask)
        if balance_seed is not None:
            training = training.take(_balanced(training.y, balance_seed))
        if not allow_constant:
            _require_change(training)
        parts = {"train": training, "test": testing}

        def origin(field: str, index: int) -> str:
            return parts[field.partition("_")[0]].place(index)

        return DeviceData(training.x, training.y, testing.x, testing.y, origin=origin)


def read_csv(
    path: Path | str,
    inputs: Sequence[str],
    target: str,
    classes: Sequence[str] | None = None,
    *,
    delimiter: str = ",",
) -> Examples:
    r"""Read a CSV file with a header line, or all `*.csv` of a folder in the order of their names.

    Args:
        path: The file or the folder.
        inputs: Columns of the inputs, which hold numbers.
        target: Column of the target.
        classes: Values of the target; the class of an example is the position of its value. None: targets are numbers.
        delimiter: Character between two values.

    Returns:
        Examples with x of shape (n, len(inputs)).

    Raises:
        DataError: No file is there, a column is absent, a line has more or fewer columns, a value is no finite number or no
            known class. The message names file, line and column.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedpatch import examples
        >>> file = Path(tempfile.mkdtemp()) / "monday.csv"
        >>> _ = file.write_text("x,state\n0.5,rest\n0.7,walk\n")
        >>> table = examples.read_csv(file, ["x"], "state", ["rest", "walk"])
        >>> table.y.tolist(), table.place(1)
        ([0, 1], 'monday.csv, line 3')
    """
    place = Path(path)
    files = sorted(place.glob("*.csv")) if place.is_dir() else [place]
    if not files:
        raise DataError(f"{place}: the folder has no *.csv file; give the folder with the readings of this device")
    builder = _Builder(inputs, target, classes, "line")
    for file in files:
        builder.begin(file.name)
        try:
            with file.open(encoding="utf-8-sig", newline="") as lines:
                reader = csv.DictReader(lines, delimiter=delimiter)
                builder.require(reader.fieldnames or ())
                for record in reader:
                    _require_all_columns(record, f"{file.name}, line {reader.line_num}")
                    builder.add(record, reader.line_num)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{file}: cannot be read: {error}") from error
    return builder.examples()


def from_frame(
    frame: pd.DataFrame,
    inputs: Sequence[str],
    target: str,
    classes: Sequence[Any] | None = None,
    *,
    name: str = "frame",
) -> Examples:
    """Return the examples of a pandas frame.

    Args:
        frame: The frame, one row for each example.
        inputs: Columns of the inputs, which hold numbers.
        target: Column of the target.
        classes: Values of the target, as for `read_csv`.
        name: Name of the frame in messages.

    Returns:
        Examples with x of shape (n, len(inputs)).

    Raises:
        DataError: As `read_csv`; rows are counted from 0.

    Example:
        >>> import pandas as pd
        >>> from fedpatch import examples
        >>> frame = pd.DataFrame({"x": [0.5, 0.7], "state": ["rest", "walk"]})
        >>> examples.from_frame(frame, ["x"], "state", ["rest", "walk"]).place(1)
        'frame, row 1'
    """
    builder = _Builder(inputs, target, classes, "row")
    builder.begin(name)
    builder.require([str(column) for column in frame.columns])
    for row, record in enumerate(frame.to_dict("records")):
        builder.add(record, row)
    return builder.examples()


def from_dataset(
    dataset: MapStyle,
    positions: Sequence[int] | NDArray[np.int64] | None = None,
    *,
    keys: tuple[str, str] | None = None,
    transform: Callable[[Any], ArrayLike] | None = None,
    name: str = "data set",
) -> Examples:
    """Return examples of a map-style data set.

    Args:
        dataset: Items are pairs of input and class, as in torchvision, or mappings, as in Hugging Face's datasets.
        positions: Positions of this device's items, such as a shard of `fedpatch.splits`; None: all.
        keys: With mappings: the keys of input and class, such as ("image", "label").
        transform: Makes an array of an item's input; None: `numpy.asarray`.
        name: Name of the data set in messages.

    Returns:
        Examples with x of shape (n, ...), where the rest is the shape of an input.

    Raises:
        DataError: Items have no such keys, inputs have different shapes or a value that is not finite.

    Example:
        >>> from fedpatch import examples
        >>> examples.from_dataset([([0.0, 1.0], 3), ([2.0, 3.0], 4)], [1]).y.tolist()
        [4]
    """
    rows = np.arange(len(dataset)) if positions is None else np.asarray(positions, np.int64)
    inputs: list[NDArray[np.float32]] = []
    targets: list[Any] = []
    for row in rows.tolist():
        where = f"{name}, item {row}"
        found, label = _pair(dataset[row], keys, where)
        values = np.asarray(found if transform is None else transform(found), np.float32)
        if inputs and values.shape != inputs[0].shape:
            raise DataError(
                f"{where}: shape {values.shape}, others have {inputs[0].shape}; give `transform` to make them equal"
            )
        if not np.isfinite(values).all():
            raise DataError(
                f"{where}: a value is not a finite number; leave the item out of `positions`, or correct it"
            )
        inputs.append(values)
        targets.append(label)
    if not inputs:
        raise DataError(f"{name}: no items are chosen; give positions within 0 and {len(dataset) - 1}")
    return Examples(np.stack(inputs), _targets(targets), (name,), np.zeros(len(rows), np.int64), rows, "item")


def windows(series: Examples, length: int, stride: int = 1) -> Examples:
    """Cut readings in order of time into windows; no window crosses the end of a file.

    Args:
        series: Readings with x of shape (n, channels).
        length: Readings in a window.
        stride: Readings between the beginnings of two windows; below `length`, windows overlap, so split them with
            `splits.block_split` or `splits.time_split`.

    Returns:
        Examples with x of shape (k, channels, length). Target and place of a window are those of its last reading.

    Raises:
        UsageError: `length` or `stride` is below 1.
        DataError: No file has `length` readings.

    Example:
        >>> import numpy as np
        >>> from fedpatch import examples
        >>> none = np.zeros(6, np.int64)
        >>> series = examples.Examples(np.zeros((6, 3), np.float32), none, ("a.csv",), none, np.arange(6))
        >>> examples.windows(series, length=4, stride=2).x.shape
        (2, 3, 4)
    """
    if length < 1 or stride < 1:
        raise UsageError(f"windows of length {length} and stride {stride}; both must be at least 1")
    bounds = [0, *(np.flatnonzero(np.diff(series.source)) + 1).tolist(), len(series)]
    ends = [end for begin, after in pairwise(bounds) for end in range(begin + length - 1, after, stride)]
    if not ends:
        longest = max(np.diff(bounds), default=0)
        raise DataError(f"{', '.join(series.sources)}: at most {longest} readings in a file; a window needs {length}")
    cut = np.stack([series.x[end - length + 1 : end + 1].T for end in ends])
    last = series.take(np.array(ends))
    return Examples(cut, last.y, last.sources, last.source, last.row, last.row_word)


class _Builder:
    """Collects records, and checks each value."""

    def __init__(self, inputs: Sequence[str], target: str, classes: Sequence[Any] | None, row_word: str) -> None:
        if not inputs:
            raise UsageError("no columns are given as inputs")
        self._inputs, self._target, self._row_word = tuple(inputs), target, row_word
        self._classes = None if classes is None else {value: number for number, value in enumerate(classes)}
        self._sources: list[str] = []
        self._x: list[list[float]] = []
        self._y: list[float] = []
        self._place: list[tuple[int, int]] = []

    def begin(self, source: str) -> None:
        self._sources.append(source)

    def require(self, columns: Sequence[str]) -> None:
        absent = [name for name in (*self._inputs, self._target) if name not in columns]
        if absent:
            there = ", ".join(columns) or "no header line"
            raise DataError(f"{self._sources[-1]}: no column {', '.join(absent)}; there is {there}")

    def add(self, record: Mapping[Any, Any], row: int) -> None:
        where = f"{self._sources[-1]}, {self._row_word} {row}"
        self._x.append([_number(record[name], f"{where}, column {name}") for name in self._inputs])
        self._y.append(self._label(record[self._target], f"{where}, column {self._target}"))
        self._place.append((len(self._sources) - 1, row))

    def _label(self, value: Any, where: str) -> float:
        if self._classes is None:
            return _number(value, where)
        if value not in self._classes:
            raise DataError(f"{where}: {value!r} is none of the classes {', '.join(map(str, self._classes))}")
        return self._classes[value]

    def examples(self) -> Examples:
        if not self._x:
            raise DataError(f"{', '.join(self._sources)}: no examples")
        place = np.array(self._place, np.int64)
        y = np.array(self._y, np.float32 if self._classes is None else np.int64)
        x = np.array(self._x, np.float32)
        return Examples(x, y, tuple(self._sources), place[:, 0], place[:, 1], self._row_word)


def _require_all_columns(record: Mapping[Any, Any], where: str) -> None:
    """Raise DataError for a line with fewer or more columns than the header; csv keeps the values of others under None."""
    if None in record.values():
        raise DataError(f"{where}: too few columns; correct it, or leave it out")
    if any(value.strip() for value in record.get(None, ())):
        raise DataError(
            f"{where}: too many columns; correct it, or leave it out (two lines in one, or a comma in a number?)"
        )


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{where}: {value!r} is no number; correct the row, or leave it out") from None
    if not abs(number) <= _GREATEST:  # the comparison is false for NaN
        raise DataError(f"{where}: {value!r} is not a finite number; correct the row, or leave it out")
    return number


def _pair(item: Any, keys: tuple[str, str] | None, where: str) -> tuple[Any, Any]:
    try:
        if keys is not None:
            return item[keys[0]], item[keys[1]]
        if isinstance(item, Mapping):
            raise TypeError("a mapping needs keys")
        found, label = item
    except (KeyError, TypeError, ValueError) as error:
        hint = 'give `keys`, such as ("image", "label")' if keys is None else f"it has {', '.join(map(str, item))}"
        raise DataError(f"{where}: input and class are not there; {hint}") from error
    return found, label


def _targets(labels: Sequence[Any]) -> NDArray[Any]:
    found = np.asarray(labels)
    return found.astype(np.int64) if np.issubdtype(found.dtype, np.integer) else found.astype(np.float32)


def _balanced(labels: NDArray[Any], seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    more = [
        rng.choice(np.flatnonzero(labels == one), counts.max() - count)
        for one, count in zip(classes, counts, strict=True)
    ]
    return np.concatenate([np.arange(len(labels)), *more])


def _require_change(training: Examples) -> None:
    """Raise DataError if a column or a channel, axis 1, has one value in all training examples. Images are not checked."""
    if len(training) < 2 or training.x.ndim not in (2, 3):
        return
    axes = tuple(axis for axis in range(training.x.ndim) if axis != 1)
    stuck = np.flatnonzero(training.x.max(axes) == training.x.min(axes))
    if stuck.size:
        value, names = training.x[0, stuck[0]].flat[0], ", ".join(training.sources)
        raise DataError(
            f"{names}: input {stuck[0]} has the value {value:g} in all training examples; is its sensor connected? "
            "Leave the column out on all devices, or set allow_constant=True"
        )
