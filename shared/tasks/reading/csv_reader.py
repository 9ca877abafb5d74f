"""The reader of files and folders of readings, for training, growing data and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from fedpatch.shared.app.formatting import printable
from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.reading.cell_values import (
    BLANKS,
    RefusedValue,
    is_missing,
    number_in,
    number_or_classes,
    plain_spelling,
    time_in,
)
from fedpatch.shared.tasks.reading.csv_lines import UnreadableFile, cells_of, has_unfinished_line, lines_of
from fedpatch.shared.tasks.reading.folder_listing import reading_files
from fedpatch.shared.tasks.reading.readings_format import ReadingsFormat
from fedpatch.shared.tasks.reading.readings_table import (
    CellReaders,
    DamagedRow,
    Places,
    ReadingsTable,
    TableBuilder,
    label_reader,
)

TIME_NAMES = ("time", "timestamp", "datetime", "date", "t")
"""Names of the column of the time where the format names none, in the order in which they are looked for."""

_TEMPERATURE = "t"
"""The one of these names that an input may have which is no time."""

_SEPARATORS = (",", ";", "\t", "|", " ")
_EXCEL_MARK = "sep="
_SHOWN_COLUMNS = 12


class _Header(Exception):
    """A file whose columns are not those of the format. The text is the reason."""


def read_table(place: Path, form: ReadingsFormat, *, for_prediction: bool = False) -> ReadingsTable:
    """Read a file, or all `*.csv` files of a folder, in natural order of their names.

    Args:
        place: The file or folder.
        form: Columns and policy.
        for_prediction: Whether the target is neither needed nor read, and a file may lack a header.

    Returns:
        The rows.

    Raises:
        DataError: No row is left. The message has the first places and their reasons.
    """
    files = reading_files(place)
    is_folder = files != [place]
    used = form.for_prediction() if for_prediction else form
    builder = TableBuilder(
        used.inputs,
        {"target": used.target, "time": used.time or "the time", "group": used.group},
        _cells(used),
        classes=bool(used.classes),
        damaged_share=used.damaged_share,
        row_word="line",
    )
    timed: set[bool] = set()
    for file in files:
        builder.begin(printable(str(file)), printable(file.name))
        try:
            places = _read_file(builder, file, used, form if for_prediction else None)
        except (OSError, UnreadableFile, _Header) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            what = f"cannot be read: {words}" if isinstance(error, OSError) else words
            builder.refuse(f"{printable(str(file))}: {what}")
        else:
            if places is not None and builder.end():
                timed.add(places.time >= 0)
        if builder.failures and not is_folder:
            raise DataError(builder.failures[0])
    if len(timed) > 1:
        builder.note(
            f"{printable(str(place))}: some files have a column of the time, others have none, so that no time is used"
        )
    return builder.table()


def _read_file(
    builder: TableBuilder, file: Path, form: ReadingsFormat, predicted: ReadingsFormat | None
) -> Places | None:
    """Add the rows of a file; None where it has no complete line yet."""
    lines = _plain_lines(file, form.comment)
    first = next(lines, None)
    if first is None:
        cut = has_unfinished_line(file)
        builder.note(
            f"{printable(str(file))}: holds no complete line yet{'; end its line with a line break' if cut else ''}"
        )
        return None
    number, text = first
    header, columns, places = _columns(text, form, predicted)
    checked = bool(form.time) or places.time < 0
    for number, text in lines if header else chain([first], lines):
        try:
            cells = _whole_row(text, form.delimiter, columns)
        except DamagedRow as damage:
            builder.damaged(number, str(damage))
            continue
        if header and [one.strip(BLANKS) for one in cells] == header:
            continue  # the header again: files were joined, or the logger restarted
        if not checked:
            checked, places = True, _with_usable_time(builder, cells, places, form, printable(str(file)))
        builder.add(cells, places, number)
    return places


def _with_usable_time(
    builder: TableBuilder, cells: Sequence[str], places: Places, form: ReadingsFormat, shown: str
) -> Places:
    """Return the positions without that of the time, if nobody named its column and the first row has no time in it."""
    try:
        time_in(cells[places.time], form.decimal)
    except RefusedValue as why:
        builder.note(f"{shown}: no time is used: {why}")
        return replace(places, time=-1)
    return places


def _plain_lines(file: Path, comment: str) -> Iterator[tuple[int, str | None]]:
    for number, text in lines_of(file):
        if text is None or not comment or not text.lstrip(BLANKS).startswith(comment):
            yield number, text


def _whole_row(text: str | None, delimiter: str, columns: int) -> list[str]:
    """Return the cells of a line. DamagedRow where there are fewer or more of them than columns."""
    if text is None:
        raise DamagedRow("it is too long, or holds bytes that are no text")
    cells = cells_of(text, delimiter)
    while len(cells) > columns and not cells[-1].strip(BLANKS):
        del cells[-1]
    if len(cells) < columns:
        raise DamagedRow(f"too few columns, {len(cells)} instead of {columns}; is the line cut off?")
    if len(cells) > columns:
        raise DamagedRow(
            f"too many columns, {len(cells)} instead of {columns}; two lines in one, or a comma in a number?"
        )
    return cells


def _columns(text: str | None, form: ReadingsFormat, predicted: ReadingsFormat | None) -> tuple[list[str], int, Places]:
    """Return the header (empty where there is none), the number of columns, and the positions of those that are read."""
    if text is None:
        raise _Header("its first line is no text; it must name the columns")
    try:
        found = [one.strip(BLANKS) for one in cells_of(text, form.delimiter)]
    except DamagedRow as damage:
        raise _Header(f"its first line: {damage}") from None
    while found and not found[-1]:
        del found[-1]
    needed = form.needed if predicted is None else form.inputs
    if all(name in found for name in needed):
        return found, len(found), _places(found, form)
    if form.names and len(found) == len(form.names):
        return [], len(form.names), _places(form.names, form)
    if predicted is not None and not any(name in found for name in form.inputs):
        return [], len(found), _without_header(found, form, predicted)
    absent = ", ".join(name for name in needed if name not in found)
    raise _Header(f"no column {absent}; there is {_shown(found)}{_hint(text, found, needed, form)}")


def _without_header(found: Sequence[str], form: ReadingsFormat, predicted: ReadingsFormat) -> Places:
    """Return positions in a file for prediction without a header: time, inputs, target in this order, both ends optional."""
    inputs = list(form.inputs)
    orders = [[*time, *inputs, *target] for time in ([], ["time"]) for target in ([], ["target"])]
    if predicted.names:
        rest = [name for name in predicted.names if name != predicted.target]
        orders = [rest] if len(rest) == len(found) else []
    fitting = [one for one in orders if len(one) == len(found)]
    if len(fitting) > 1:
        fitting = [one for one in fitting if (one[-1] == "target") == (found[-1] in predicted.classes)]
    if len(fitting) != 1:
        wanted = ", ".join(inputs)
        raise _Header(
            f"its first line has {len(found)} cells and is no header with {wanted}; without a header each line has {wanted}, "
            "and may have the time before and the target after them"
        )
    order = fitting[0]
    time = order.index("time") if "time" in order and not predicted.names else -1
    if predicted.names:
        return _places(order, form)
    return Places(tuple(order.index(name) for name in inputs), time=time)


def _places(found: Sequence[str], form: ReadingsFormat) -> Places:
    for name in form.needed:
        if found.count(name) > 1:
            raise _Header(f"it has column {name!r} twice; rename one of them")
    lower = [one.lower() for one in found]
    time = form.time or next((found[lower.index(name)] for name in TIME_NAMES if lower.count(name) == 1), "")
    if not form.time and time.lower() == _TEMPERATURE and time in form.inputs:
        time = ""

    def place(name: str) -> int:
        return found.index(name) if name and name in found else -1

    return Places(tuple(map(place, form.inputs)), place(form.target), place(time), place(form.group))


def _hint(text: str, found: Sequence[str], needed: Sequence[str], form: ReadingsFormat) -> str:
    if text.startswith(_EXCEL_MARK):
        mark = text.removeprefix(_EXCEL_MARK).strip("\r\n") or "\t"
        return f"; this line is for Excel: remove it, and set delimiter={mark!r}"
    for one in _SEPARATORS:
        if one != form.delimiter and all(name in [part.strip(BLANKS) for part in text.split(one)] for name in needed):
            return f"; the columns are separated by {one!r}: set delimiter={one!r}"
    if found and any(_is_number(one, form.decimal) for one in found):
        return "; if the file has no header line, name all its columns in order with names=[...]"
    if "\ufffd" in text:
        return "; the file is no UTF-8: save it as UTF-8"
    alike = {plain_spelling(one): one for one in found}
    for name in needed:
        if name not in found and plain_spelling(name) in alike:
            return f"; {name!a} is spelled {alike[plain_spelling(name)]!a} in the file: write it so"
    return ""


def _is_number(text: str, decimal: str) -> bool:
    try:
        return bool(text) and number_in(text, decimal) is not None
    except RefusedValue:
        return False


def _shown(found: Sequence[str]) -> str:
    more = f" and {len(found) - _SHOWN_COLUMNS} more" if len(found) > _SHOWN_COLUMNS else ""
    return ", ".join(found[:_SHOWN_COLUMNS])[:300] + more if found else "no header line"


def _cells(form: ReadingsFormat) -> CellReaders:
    decimal = form.decimal

    def number(text: str) -> float:
        return number_in(text, decimal)

    def group(text: str) -> str:
        return text.strip(BLANKS)

    target = None
    if form.target:
        target = label_reader(form.classes, is_missing, group) if form.classes else partial(number_or_classes, number)
    return CellReaders(number, target, lambda text: None if is_missing(text) else time_in(text, decimal), group)
