"""Examples of a device from CSV files, pandas frames, arrays or data sets: checked, cut into windows, and made into DeviceData.

    READINGS = examples.ReadingsFormat(
        inputs=["x", "y", "z"], target="state", classes=["rest", "walk"], time="t", window=50, stride=25
    )

    def load_data(spec, root):
        windows = examples.read(root / spec, READINGS)
        return windows.device_data(*splits.block_split(windows, block=500))

    TASK = Task(..., readings=READINGS)   # so that `fedpatch-agent predict` takes the same files

Each example knows its file and row, so that a message about a bad value names both; and the readings that it consists of, so
that no test example shares a reading with a training example.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpatch.shared.errors import DataError, FedpatchError, UsageError
from fedpatch.shared.tasks.constant_inputs import require_change
from fedpatch.shared.tasks.part_masks import parts_of
from fedpatch.shared.tasks.reading.array_values import is_picture, numbers_of
from fedpatch.shared.tasks.reading.cell_values import GREATEST, RefusedValue, shown
from fedpatch.shared.tasks.reading.csv_reader import read_table
from fedpatch.shared.tasks.reading.folder_listing import files_version
from fedpatch.shared.tasks.reading.frame_reader import group_of, read_frame
from fedpatch.shared.tasks.reading.readings_format import FilePolicy, ReadingsFormat, in_order, names_of, require_once
from fedpatch.shared.tasks.repeated_readings import counted_once
from fedpatch.shared.tasks.separation import Readings, copies, overlapping, sharing
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.windows import windows

if TYPE_CHECKING:
    import pandas as pd

    from fedpatch.shared.tasks.reading.readings_table import ReadingsTable

__all__ = [
    "LEAST_EXAMPLES",
    "Examples",
    "ReadingsFormat",
    "files_version",
    "from_arrays",
    "from_dataset",
    "from_frame",
    "read",
    "read_csv",
    "windows",
]

_LISTED = 3
_DEPTHS = ("bool", "uint8", "uint16")  # of pictures; their values have another scale

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
    """Inputs and targets, with the place, the time and the readings of each.

    Args:
        x: Inputs of shape (n, ...), float32; NaN for a missing value.
        y: Targets of shape (n,), int64 for classes and float32 for numbers.
        sources: Names of the files, frames or data sets.
        source: Index in `sources` of each example.
        row: Row of each example: the line of a CSV file, counted from 1, or the position in a frame or a data set.
        row_word: The word for a row in messages: "line", "row" or "item".
        first: Number in its file of the first reading of each example. None: examples are single readings in order.
        last: Number in its file of the last reading.
        times: Time of each example, which is that of its last reading; None: unknown.
        begins: Time of the first reading of each example, where it is another one.
        dates: Whether times are seconds since 1970 in UTC.
        group: Index in `groups` of each example; None: unknown.
        groups: Names of the groups (persons, sessions, machines).
        inputs: Names of the inputs, along axis 1 of `x`.
        notes: A sentence for each kind of row that was left out or filled.

    Example:
        >>> from fedpatch import examples
        >>> len(examples.from_arrays([[0.5], [0.7]], [0, 1]))
        2
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    sources: tuple[str, ...]
    source: NDArray[Any]
    row: NDArray[Any]
    row_word: str = "line"
    first: NDArray[Any] = None  # type: ignore[assignment]  # __post_init__ fills it
    last: NDArray[Any] = None  # type: ignore[assignment]
    times: NDArray[np.float64] | None = None
    begins: NDArray[np.float64] | None = None
    dates: bool = False
    group: NDArray[Any] | None = None
    groups: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.first is None:
            object.__setattr__(self, "first", _ranks(np.asarray(self.source)))
        if self.last is None:
            object.__setattr__(self, "last", self.first)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def readings(self) -> Readings:
        """File, first and last reading of each example, shape (n, 3). Each group of a file counts as a file of its own."""
        files = np.asarray(self.source, np.int64) * max(1, len(self.groups))
        if self.group is not None:
            files = files + self.group
        return np.stack([files, self.first, self.last], axis=1).astype(np.int64).reshape(-1, 3)

    @property
    def overlap(self) -> bool:
        """True if two examples share a reading."""
        return len(self) > 1 and overlapping(self.readings)

    @property
    def where(self) -> str:
        """The names of the files, for messages."""
        more = f" and {len(self.sources) - _LISTED} more" if len(self.sources) > _LISTED else ""
        return ", ".join(self.sources[:_LISTED]) + more or "the data"

    @property
    def left_out(self) -> str:
        """The notes for the end of an error message."""
        return f" ({'; '.join(self.notes[:3])})" if self.notes else ""

    def place(self, index: int) -> str:
        """Return where an example came from: "monday.csv, line 13"."""
        return f"{self.sources[self.source[index]]}, {self.row_word} {self.row[index]}"

    def time_text(self, index: int) -> str:
        """Return the time of an example as text, a date in ISO 8601; "" if it is unknown."""
        if self.times is None:
            return ""
        time = float(self.times[index])
        return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z") if self.dates else f"{time:.15g}"

    def take(self, chosen: ArrayLike) -> Examples:
        """Return the examples of a boolean mask or of positions, such as a shard of `fedpatch.splits`.

        Raises:
            UsageError: It is no mask and no list of positions of these examples.
        """
        kept = positions_of(chosen, len(self), "examples")
        first = self.first[kept]
        return replace(
            self,
            x=self.x[kept],
            y=self.y[kept],
            source=self.source[kept],
            row=self.row[kept],
            first=first,
            last=first if self.last is self.first else self.last[kept],
            times=None if self.times is None else self.times[kept],
            begins=None if self.begins is None else self.begins[kept],
            group=None if self.group is None else self.group[kept],
        )

    def of_group(self, name: str) -> Examples:
        """Return the examples of one group, such as the readings of a person. DataError if there are none."""
        if self.group is None:
            raise UsageError("the examples have no groups; name the column with group=...")
        if name not in self.groups:
            listed = ", ".join(self.groups[:10]) + (
                f" and {len(self.groups) - 10} more" if len(self.groups) > 10 else ""
            )
            raise DataError(f"{self.where}: no group {name!r}; there is {listed}")
        return self.take(self.group == self.groups.index(name))

    def device_data(
        self,
        *masks: ArrayLike,
        train: ArrayLike | None = None,
        test: ArrayLike | None = None,
        balance_seed: int | None = None,
        allow_constant: bool = False,
        keep_copies: bool = False,
    ) -> DeviceData:
        """Return the data of a device.

        Training examples that share a reading with a test example are left out, and so are test examples with the same values
        as a training example. fedpatch holds the same between validation and training examples.

        Args:
            masks: The masks of a split of `fedpatch.splits`, which know their part; or one mask of the test examples.
            train: Mask of the training examples by name. None: all others.
            test: Mask of the test examples by name.
            balance_seed: Repeat training examples of rare classes, drawn with this seed, until all classes have as many as
                the most frequent one. None: leave them as they are.
            allow_constant: Whether an input may have the same value in all training examples. Else that is an error: the sensor
                is stuck or not connected.
            keep_copies: Whether equal values may stand in both parts, because they are readings of their own, such as those of
                a coarse sensor.

        Raises:
            DataError: There are fewer than LEAST_EXAMPLES, one part is empty, or an input is constant.
            UsageError: A mask is absent, is no mask of these examples, or has no name beside another.
        """
        if len(self) < LEAST_EXAMPLES:
            raise DataError(
                f"{self.where}: {len(self)} examples; a device needs at least {LEAST_EXAMPLES}, so collect more{self.left_out}"
            )
        chosen, tested = parts_of(masks, train, test, len(self))
        training, testing = self.take(~tested if chosen is None else chosen), self.take(tested)
        notes = list(self.notes)
        if len(training) and len(testing):
            training, testing = _apart(training, testing, notes, keep_copies=keep_copies)
        for part, name in ((training, "training"), (testing, "test")):
            if not len(part):
                said = f"; {'; '.join(notes[-2:])}" if notes else ""
                raise DataError(
                    f"{', '.join(self.sources)}: no {name} example; collect more, or take shorter blocks{said}"
                )
        if balance_seed is not None:
            training = training.take(_balanced(training.y, balance_seed))
        if not allow_constant:
            require_change(training)
        parts = {"train": training, "test": testing}

        def origin(field: str, index: int) -> str:
            return parts[field.partition("_")[0]].place(index)

        return DeviceData(
            training.x,
            training.y,
            testing.x,
            testing.y,
            origin=origin,
            readings=training.readings,
            input_names=self.inputs,
            notes=tuple(notes),
            keep_copies=keep_copies,
        )


def read(place: Path | str, form: ReadingsFormat, *, for_prediction: bool = False) -> Examples:
    r"""Read a file or folder of readings, and cut it into windows if the format has a window.

    Args:
        place: The file, or the folder, of which all `*.csv` files are read in natural order of their names.
        form: The columns, the windows, and the policy for damaged lines.
        for_prediction: Whether the files may lack the target, the group and the header.

    Returns:
        Examples with x of shape (n, inputs), or (n, inputs, window).

    Raises:
        DataError: No row is left. The message names file, line and column.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fedpatch import examples
        >>> file = Path(tempfile.mkdtemp()) / "monday.csv"
        >>> _ = file.write_text("time,x,state\n0,0.5,rest\n1,0.7,rest\n2,0.6,walk\n")
        >>> form = examples.ReadingsFormat(["x"], "state", ["rest", "walk"], window=2, stride=1)
        >>> examples.read(file, form).y.tolist()
        [0, 1]
    """
    found = _of_table(read_table(Path(place), form, for_prediction=for_prediction), form.inputs, "line")
    return as_examples(counted_once(found, for_prediction=for_prediction), form, for_prediction=for_prediction)


def as_examples(found: Examples, form: ReadingsFormat, *, for_prediction: bool = False) -> Examples:
    """Return readings as the examples of a format.

    Args:
        form: The format; if it has a window, they are cut into windows.
        for_prediction: Whether windows in which the class changes are kept, since nobody knows the classes.
    """
    if not form.window:
        return found
    return windows(found, form.window, form.step, max_gap=form.max_gap, mixed="last" if for_prediction else form.mixed)


def read_csv(
    path: Path | str,
    inputs: Sequence[str],
    target: str,
    classes: Sequence[str] | None = None,
    **policy: Unpack[FilePolicy],
) -> Examples:
    r"""Read the readings of a CSV file, or of all `*.csv` files of a folder in natural order of their names.

    An input without a value is NaN, which the task's `prepare` fills. A damaged line is left out. So is a last line without
    its end, which a logger may still write. Notes and log have the number and the first place.

    Args:
        path: The file or the folder.
        inputs: Columns of the inputs, which hold numbers.
        target: Column of the target.
        classes: Values of the target; the class of an example is the position of its value. None: targets are numbers.
        policy: `time`, `group`, `names`, `delimiter`, `decimal`, `comment` and `damaged_share` as for `ReadingsFormat`.

    Returns:
        Examples with x of shape (n, len(inputs)).

    Raises:
        DataError: No file is there, a column is absent or stands twice, or too many lines are damaged. In a folder such a file
            is left out, and the error is raised if no file is left. The message names file, line and column.
        UsageError: An argument is not allowed.

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
    return read(path, ReadingsFormat(inputs, target, classes or (), **policy))


def from_frame(
    frame: pd.DataFrame,
    inputs: Sequence[Hashable],
    target: Hashable | None,
    classes: Sequence[Any] | None = None,
    *,
    time: Hashable | None = None,
    group: Hashable | None = None,
    name: str = "frame",
) -> Examples:
    """Return the examples of a pandas frame.

    Args:
        frame: The frame, one row for each example.
        inputs: Columns of the inputs, which hold numbers.
        target: Column of the target. None: there is none, and targets are NaN.
        classes: Values of the target as they are in the frame. None: targets are numbers.
        time: Column of the time: numbers, dates, or texts of ISO 8601. None: the column with the name time, timestamp,
            datetime, date or t, or an index of dates, if there is one.
        group: Column of the group (a person, a session, a machine).
        name: Name of the frame in messages.

    Returns:
        Examples with x of shape (n, len(inputs)).

    Raises:
        DataError: As `read_csv`; rows are counted from 0.
        UsageError: A column or a class is named twice.

    Example:
        >>> import pandas as pd
        >>> from fedpatch import examples
        >>> frame = pd.DataFrame({"x": [0.5, 0.7], "state": ["rest", "walk"]})
        >>> examples.from_frame(frame, ["x"], "state", ["rest", "walk"]).place(1)
        'frame, row 1'
    """
    inputs, found = in_order("inputs", inputs), () if classes is None else in_order("classes", classes)
    if not inputs:
        raise UsageError("no columns are given as inputs")
    if target in inputs:
        raise UsageError(f"column {target!r} is an input and the target; the model would see its answer")
    require_once("inputs", inputs)
    require_once("classes", found)
    for one in found:
        if not isinstance(one, Hashable):
            raise UsageError(
                f"classes has {one!r}, a {type(one).__name__}, which cannot be a class; give texts or numbers"
            )
    table = read_frame(frame, inputs, target, found, time, group, name)
    return counted_once(_of_table(table, tuple(map(str, inputs)), "row"), for_prediction=target is None)


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    times: ArrayLike | None = None,
    groups: Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    name: str = "arrays",
) -> Examples:
    """Return the examples of arrays.

    Args:
        x: Inputs, examples along the first axis; NaN for a missing value.
        y: Targets, one for each input: integers for classes, else numbers.
        times: Time of each example, as numbers.
        groups: Group of each example (a person, a session, a machine).
        inputs: Names of the inputs.
        name: Name of the arrays in messages.

    Returns:
        Examples with x of the same shape, float32.

    Raises:
        DataError: A value is no number or not finite, a list is ragged, or the numbers of examples differ.

    Example:
        >>> from fedpatch import examples
        >>> examples.from_arrays([[0.5], [0.7]], [0, 1]).place(1)
        'arrays, row 1'
    """
    found, targets = _array(x, f"{name}: x"), _targets(y, f"{name}: y")
    notes = _rounding_notes(x, found, f"{name}: x")
    when = None if times is None else _times(times, f"{name}: times")
    names = None if groups is None else np.array(_group_names(groups, f"{name}: groups"), str)
    if not found.ndim:
        raise DataError(f"{name}: x is one number; give a list with an example for each input")
    for word, other in (("targets", targets), ("times", when), ("groups", names)):
        if other is not None and other.shape[:1] != found.shape[:1]:
            count = len(other) if other.ndim else "not a list of"
            raise DataError(f"{name}: {len(found)} inputs and {count} {word}; give one for each input")
    inputs = names_of("inputs", inputs)
    if inputs and found.shape[1:2] != (len(inputs),):
        raise UsageError(f"{name}: {len(inputs)} names of inputs for x of shape {found.shape}; name each of axis 1")
    listed, codes = (np.array([]), None) if names is None else np.unique(names, return_inverse=True)
    rows = np.arange(len(found))
    return Examples(
        found,
        targets,
        (name,),
        np.zeros(len(found), np.int32),
        rows,
        "row",
        times=when,
        group=codes,
        groups=tuple(str(one) for one in listed),
        inputs=inputs,
        notes=notes,
    )


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
        positions: Positions of this device's items, such as a shard of `fedpatch.splits`, or a mask; None: all.
        keys: With mappings: the keys of input and class, such as ("image", "label").
        transform: Makes an array of an item's input; None: `numpy.asarray`, and of a picture its pixels from 0 to 1 with
            colours first, as `fedpatch-agent predict` reads pictures. A picture must have 8 bits for each value, no
            transparency, and stand upright.
        name: Name of the data set in messages.

    Returns:
        Examples with x of shape (n, ...), where the rest is the shape of an input.

    Raises:
        DataError: An item cannot be read or has no such keys, inputs have different shapes, or a value is no finite number.
        UsageError: `dataset` has no length, or `positions` are none of it.

    Example:
        >>> from fedpatch import examples
        >>> examples.from_dataset([([0.0, 1.0], 3), ([2.0, 3.0], 4)], [1]).y.tolist()
        [4]
    """
    try:
        count = len(dataset)
    except TypeError:
        raise UsageError(
            f"{name}: a {type(dataset).__name__} has no length; give a list or a map-style data set"
        ) from None
    rows = np.arange(count) if positions is None else positions_of(positions, count, "items")
    inputs: list[NDArray[np.float32]] = []
    depth: np.dtype[Any] | None = None
    targets: list[Any] = []
    for row in rows.tolist():
        where = f"{name}, item {row}"
        with _named(f"{where}: cannot be read"):
            item = dataset[row]
        found, label = _pair(item, keys, where)
        with _named(f"{where}: transform failed"):
            made = found if transform is None else transform(found)
        numbers = _numbers(made, where)
        kind = np.asarray(made).dtype if is_picture(made) else numbers.dtype
        depth = depth or kind
        if kind != depth and not {kind.name, depth.name}.isdisjoint(_DEPTHS):
            raise DataError(
                f"{where}: values are {kind}, those of item {rows[0]} {depth}; scale all alike, with `transform`"
            )
        values = _cast(numbers, where, np.float32)
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
        raise DataError(f"{name}: of {count} items no items are chosen; give positions of some")
    return Examples(
        np.stack(inputs),
        _targets(targets, f"{name}: the classes"),
        (name,),
        np.zeros(len(rows), np.int32),
        rows,
        "item",
        first=rows,
    )


def _of_table(table: ReadingsTable, inputs: Sequence[str], row_word: str) -> Examples:
    return Examples(
        table.x,
        table.y,
        table.sources,
        table.source,
        table.row,
        row_word,
        first=table.index,
        times=table.times,
        dates=table.dates,
        group=table.group,
        groups=table.groups,
        inputs=tuple(inputs),
        notes=table.notes,
    )


def positions_of(chosen: Any, count: int, what: str) -> NDArray[np.int64]:
    """Return the positions that a mask or a list of positions chooses.

    Args:
        chosen: Booleans of shape (count,), or positions from 0 to count - 1.
        what: Word for them, plural.

    Raises:
        UsageError: It is neither.
    """
    found = np.asarray(chosen)
    if found.dtype == bool:
        if found.shape != (count,):
            raise UsageError(f"a mask of shape {found.shape} does not fit {count} {what}")
        return np.flatnonzero(found)
    if found.ndim == 1 and not len(found):
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= count:
        raise UsageError(
            f"{shown(chosen)} are no positions of {count} {what}; give a list of integers from 0 to {count - 1}, or a mask"
        )
    return found.astype(np.int64)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """A context for code of the user: an exception in it becomes a DataError."""
    try:
        yield
    except FedpatchError:
        raise
    except Exception as error:
        raise DataError(f"{what}: {type(error).__name__}: {error}") from error


def complete(inputs: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of the examples whose values are all there."""
    found = np.asarray(inputs)
    if found.dtype.kind != "f":
        return np.ones(len(found), bool)
    whole: NDArray[np.bool_] = ~np.isnan(found).reshape(len(found), -1).any(axis=1)
    return whole


def without_missing(found: Examples) -> Examples:
    """Return the examples whose inputs are all there, with a note, which is also logged; DataError if there is none."""
    from fedpatch.shared.tasks.reading.readings_table import log

    whole = complete(found.x)
    if whole.all():
        return found
    first = found.place(int(np.argmin(whole)))
    note = f"examples with a missing input: {int((~whole).sum())} of {len(found)}, left out; the first: {first}"
    if not whole.any():
        raise DataError(f"{found.where}: {note}; fill missing inputs in the task's `prepare`")
    log.warning("%s: %s", found.where, note)
    return replace(found.take(whole), notes=(*found.notes, note))


def _ranks(source: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each example among those of its file."""
    ranks = np.zeros(len(source), np.int64)
    for file in np.unique(source):
        mine = source == file
        ranks[mine] = np.arange(mine.sum())
    return ranks


def _array(values: Any, what: str, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
    """Return values as floating numbers. DataError where one is no number, or beyond the dtype."""
    return _cast(_numbers(values, what), what, dtype)


def _numbers(values: Any, what: str) -> NDArray[Any]:
    try:
        return numbers_of(values)
    except RefusedValue as why:
        raise DataError(f"{what} {why}") from None


def _cast(found: NDArray[Any], what: str, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        cast = found.astype(dtype)
    beyond = np.isinf(cast)
    if beyond.any():
        value = shown(found[beyond].flat[0].item())
        raise DataError(f"{what}: a value is not a finite number of {cast.dtype}, {value}; correct it")
    return cast


def _rounding_notes(values: Any, kept: NDArray[np.float32], what: str) -> tuple[str, ...]:
    """Return a note, which is also logged, if float32 does not hold the last digits of large numbers."""
    from fedpatch.shared.tasks.reading.float32_rounding import rounded_in
    from fedpatch.shared.tasks.reading.readings_table import log

    rounded = rounded_in(np.asarray(values), kept)
    if rounded is None:
        return ()
    note = f"{what}: {rounded.words()}"
    log.warning("%s", note)
    return (note,)


def _times(times: Any, what: str) -> NDArray[np.float64]:
    found = _array(times, what, np.float64)
    if np.isnan(found).any() or found.ndim > 1:
        raise DataError(f"{what}: a time is missing, or they are no list; give a number for each input")
    return found


def _group_names(groups: Any, what: str) -> list[str]:
    """Return the name of each group. DataError for a missing one, and for what is no text and no number."""
    if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
        raise DataError(f"{what}: is {shown(groups)}; give a list with the group of each input")
    names = []
    for place, one in enumerate(groups):
        try:
            name = group_of(one)
        except RefusedValue as why:
            raise DataError(f"{what}: row {place}: {why}") from None
        if not name:
            raise DataError(f"{what}: row {place} has no group; name it, or leave the example out")
        names.append(name)
    return names


def _targets(labels: Any, what: str) -> NDArray[Any]:
    try:
        found = numbers_of(labels)
    except RefusedValue as why:
        raise DataError(f"{what}: the list {why}") from None
    if found.dtype.kind in "iu":
        if (found > np.iinfo(np.int64).max).any():
            raise DataError(f"{what}: a target is an integer of more than 63 bits; number the classes from 0")
        return found.astype(np.int64)
    if found.dtype.kind == "b":
        raise DataError(f"{what}: targets are True and False; give class numbers, 0 and 1")
    if not np.isfinite(found).all() or (np.abs(found) > GREATEST).any():
        raise DataError(f"{what}: a target is not a finite number; leave the example out")
    return found.astype(np.float32)


def _pair(item: Any, keys: tuple[str, str] | None, where: str) -> tuple[Any, Any]:
    try:
        if keys is not None:
            return item[keys[0]], item[keys[1]]
        if isinstance(item, Mapping):
            raise TypeError("a mapping needs keys")
        found, label = item
    except (KeyError, TypeError, ValueError, IndexError) as error:
        hint = 'give `keys`, such as ("image", "label")'
        if keys is not None:
            hint = (
                f"it has {', '.join(map(str, item))}" if isinstance(item, Mapping) else f"it is a {type(item).__name__}"
            )
        raise DataError(f"{where}: input and class are not there; {hint}") from error
    return found, label


def _apart(training: Examples, testing: Examples, notes: list[str], *, keep_copies: bool) -> tuple[Examples, Examples]:
    """Return both parts without training examples that share a reading, and without test examples that are copies."""
    near = sharing(training.readings, testing.readings)
    if near.any():
        notes.append(
            f"training examples that share readings with test examples: {int(near.sum())} of {len(training)}, left out"
        )
        training = training.take(~near)
    if not keep_copies and len(training):
        same = copies(testing.x, training.x)
        if same.any():
            notes.append(
                f"test examples with the values of a training example: {int(same.sum())} of {len(testing)}, left out "
                "(keep_copies=True keeps them)"
            )
            testing = testing.take(~same)
    return training, testing


def _balanced(labels: NDArray[Any], seed: int) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iu":
        raise UsageError("balance_seed balances classes, and these targets are numbers; leave it out")
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    more = [
        rng.choice(np.flatnonzero(labels == one), counts.max() - count)
        for one, count in zip(classes, counts, strict=True)
    ]
    return np.concatenate([np.arange(len(labels)), *more])
