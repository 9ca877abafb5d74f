"""The rows of files and frames, collected into arrays: damaged rows (damaged_rows) are left out, missing values are NaN.

The policy is the same for each reader:

- An input without a value is NaN; the task's `prepare` fills it.
- A row without its target, its time or its group is left out.

Each of them is counted; a note has the number and the first place.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.reading.cell_values import RefusedValue
from fedpatch.shared.tasks.reading.damaged_rows import DamagedRow, DamagedRows
from fedpatch.shared.tasks.reading.float32_rounding import EXACT, Rounded

log = logging.getLogger("fedpatch.data")

MOST_ROWS = 2**31 - 1
_NUMBERS, _DATES, _UNTIMED = 0, 1, 2  # kinds of the time of a row


@contextmanager
def notes_unlogged() -> Iterator[None]:
    """A context for a command that prints the notes itself."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@dataclass(frozen=True, eq=False)
class ReadingsTable:
    """The rows of files or frames.

    Attributes:
        x: Inputs of shape (n, inputs), float32; NaN for a missing value.
        y: Targets of shape (n,): int64 for classes, float32 for numbers, NaN where there is no target.
        sources: Names of the files or frames.
        source: Index in `sources` of each row.
        row: Line of a file, counted from 1, or row of a frame.
        index: Number of the row among the rows of its file, damaged ones included.
        times: Time of each row; None where no column has it.
        dates: Whether times are seconds since 1970.
        group: Index in `groups` of each row; None where no column has it.
        groups: Names of the groups.
        notes: A sentence for each kind of row that was left out or filled.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    sources: tuple[str, ...]
    source: NDArray[np.int32]
    row: NDArray[np.int32]
    index: NDArray[np.int32]
    times: NDArray[np.float64] | None
    dates: bool
    group: NDArray[np.int32] | None
    groups: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CellReaders:
    """The meaning of a cell of a file or of a frame. Each function raises RefusedValue for a cell that it does not understand.

    Attributes:
        number: Returns the number of an input; NaN for a missing value.
        target: Returns the class or the number of a target; NaN for a missing one. None: rows have no target.
        time: Returns a time, and whether it is a date; None for a missing one.
        group: Returns the name of a group; "" for a missing one.
    """

    number: Callable[[Any], float]
    target: Callable[[Any], float] | None
    time: Callable[[Any], tuple[float, bool] | None]
    group: Callable[[Any], str]


@dataclass(frozen=True)
class Places:
    """Positions of the columns in a row; -1 for a column that is not there."""

    inputs: tuple[int, ...]
    target: int = -1
    time: int = -1
    group: int = -1


class TableBuilder:
    """Collects rows.

    Args:
        inputs: Names of the inputs.
        named: Names of target, time and group, for messages.
        cells: What a cell means.
        classes: Whether targets are classes.
        damaged_share: Share of the rows of a file above which it is refused.
        row_word: The word for a row: "line" or "row".
    """

    def __init__(
        self,
        inputs: Sequence[str],
        named: dict[str, str],
        cells: CellReaders,
        *,
        classes: bool,
        damaged_share: float,
        row_word: str,
    ) -> None:
        self._inputs, self._named, self._cells = tuple(inputs), named, cells
        self._classes, self._damaged_share, self._row_word = classes, damaged_share, row_word
        self._sources: list[str] = []
        self._paths: list[str] = []
        self._x = array("f")
        self._y: array[Any] = array("q" if classes else "f")
        self._source, self._row, self._index = array("i"), array("i"), array("i")
        self._times, self._kind = array("d"), array("b")
        self._group, self._groups = array("i"), dict[str, int]()
        self.notes: list[str] = []
        self.failures: list[str] = []

    def begin(self, shown: str, name: str) -> None:
        """Begin a file: its path for messages, and its name."""
        self._shown, self._name = shown, name
        self._start = len(self._y)
        self._damage = DamagedRows(shown, self._row_word, self._damaged_share)
        self._without: Counter[str] = Counter()
        self._rounded: dict[str, Rounded] = {}
        self._number = len(self._sources)
        self._sources.append(name)
        self._paths.append(shown)

    def damaged(self, row: int, why: str) -> None:
        """Count a damaged row."""
        self._damage.add(row, why)

    def add(self, cells: Sequence[Any], places: Places, row: int) -> None:
        """Add a row, or count it as damaged or without a value.

        Args:
            places: Places of the columns among the cells.
            row: Number of the row in its file or frame.
        """
        try:
            self._add(cells, places, row)
        except DamagedRow as damage:
            self.damaged(row, str(damage))

    def end(self) -> bool:
        """End the file: note what was left out. If the file is refused, forget its rows and return False."""
        self._leave_out_rare_times()
        if why := self._damage.refusal():
            self.refuse(why)
            return False
        if note := self._damage.note():
            self.note(note)
        for name, count in self._without.items():
            done = "for prepare to fill" if name in self._inputs else "left out"
            self.note(f"{self._shown}: {self._row_word}s without {name}: {count}, {done}")
        for name, rounded in self._rounded.items():
            self.note(f"{self._shown}: column {name}: {rounded.words()}")
        return True

    def refuse(self, why: str) -> None:
        """Leave out the present file."""
        self.failures.append(why)
        self._keep(np.zeros(len(self._y) - self._start, bool), self._start)

    def table(self) -> ReadingsTable:
        """Return the table. DataError if no row is left."""
        dates = self._of_one_time()
        for why in self.failures:
            self.note(f"file left out: {why}")
        if not len(self._y):
            raise DataError(
                "; ".join(self.failures[:3] or self.notes[:3])
                or f"{', '.join(self._sources)}: no examples; collect {self._row_word}s below the names of the columns"
            )
        y = np.frombuffer(self._y, np.int64 if self._classes else np.float32)
        return ReadingsTable(
            x=np.frombuffer(self._x, np.float32).reshape(len(y), len(self._inputs)),
            y=y,
            sources=tuple(self._sources),
            source=np.frombuffer(self._source, np.int32),
            row=np.frombuffer(self._row, np.int32),
            index=np.frombuffer(self._index, np.int32),
            times=None if dates is None else np.frombuffer(self._times, np.float64),
            dates=bool(dates),
            group=None if min(self._group) < 0 else np.frombuffer(self._group, np.int32),
            groups=tuple(self._groups),
            notes=tuple(self.notes),
        )

    def _add(self, cells: Sequence[Any], places: Places, row: int) -> None:
        values = [
            self._value(self._cells.number, cells[place], name)
            for place, name in zip(places.inputs, self._inputs, strict=True)
        ]
        target = math.nan
        if self._cells.target is not None:
            target = self._value(self._cells.target, cells[places.target], self._named["target"])
        time = self._value(self._cells.time, cells[places.time], self._named["time"]) if places.time >= 0 else None
        group = self._value(self._cells.group, cells[places.group], self._named["group"]) if places.group >= 0 else None
        self._damage.rows += 1
        lacking = {
            "target": self._cells.target is not None and math.isnan(target),
            "time": places.time >= 0 and time is None,
            "group": group == "",
        }
        if name := next((name for name, lacks in lacking.items() if lacks), ""):
            self._without[self._named[name]] += 1
            return
        self._without.update(name for name, value in zip(self._inputs, values, strict=True) if value != value)
        self._x.extend(values)
        if any(abs(value) > EXACT for value in values):
            self._note_rounded(values)
        self._y.append(int(target) if self._classes else target)
        self._source.append(self._number)
        self._row.append(row)
        self._index.append(self._damage.rows - 1)
        self._times.append(math.nan if time is None else time[0])
        self._kind.append(_UNTIMED if time is None else _DATES if time[1] else _NUMBERS)
        self._group.append(-1 if group is None else self._groups.setdefault(group, len(self._groups)))

    def _leave_out_rare_times(self) -> None:
        """Count rows of the file as damaged whose time is a number among dates, or the reverse.

        A logger may write the seconds since its start until its clock is set.
        """
        kinds = np.array(self._kind[self._start :])
        if len(np.unique(kinds)) < 2:
            return
        usual = _usual(kinds)
        rare = kinds != usual
        words = f"column {self._named['time']}: {_words(1 - usual)} among {_words(usual)}"
        self._damage.rows -= int(rare.sum())
        for row in np.array(self._row[self._start :])[rare].tolist():
            self.damaged(row, words)
        self._keep(~rare, self._start)

    def _of_one_time(self) -> bool | None:
        """Leave out files whose times are of another kind than most rows, and return whether times are dates.

        None: there are no times, or most rows have none.
        """
        kinds = np.array(self._kind)
        if not len(kinds):
            return None
        usual = _usual(kinds)
        if usual == _UNTIMED:
            if (kinds != usual).any():
                self.note("some files have a column of the time, others have none, so that no time is used")
            return None
        source = np.array(self._source)
        for file in np.unique(source[kinds != usual]).tolist():
            if kinds[source == file][0] == _UNTIMED:
                why = "it has no column of the time, as the other files have"
            else:
                why = f"its times are {_words(1 - usual)}, those of the other files {_words(usual)}"
            self.failures.append(f"{self._paths[file]}: {why}; write the time of all files alike")
        self._keep(kinds == usual, 0)
        return usual == _DATES

    def _keep(self, kept: NDArray[np.bool_], start: int) -> None:
        """Keep some of the rows from a row on."""
        if kept.all():
            return
        columns = [self._y, self._source, self._row, self._index, self._times, self._kind, self._group]
        for column, width in (*((one, 1) for one in columns), (self._x, len(self._inputs))):
            rows = np.array(column[start * width :]).reshape(-1, width)
            column[start * width :] = array(column.typecode, rows[kept].tobytes())

    def _note_rounded(self, values: Sequence[float]) -> None:
        for name, value, kept in zip(self._inputs, values, self._x[-len(values) :], strict=True):
            if abs(value) > EXACT and kept != value:
                self._rounded.setdefault(name, Rounded(value, kept)).count += 1

    def _value(self, read: Callable[[Any], Any], cell: Any, column: str) -> Any:
        try:
            return read(cell)
        except RefusedValue as why:
            raise DamagedRow(f"column {column}: {why}") from None

    def note(self, text: str) -> None:
        """Log a sentence, and keep it for the table."""
        self.notes.append(text)
        log.warning("%s", text)


def _usual(kinds: NDArray[np.int8]) -> int:
    """Return the kind of most times; of as many numbers as rows without time, numbers."""
    return int(np.bincount(kinds, minlength=3).argmax())


def _words(kind: int) -> str:
    return "dates" if kind == _DATES else "numbers"
