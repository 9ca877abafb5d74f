"""The reader of files and folders of readings, for training, growing data and prediction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
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
from fedpatch.shared.tasks.reading.class_labels import label_reader
from fedpatch.shared.tasks.reading.csv_lines import UnreadableFile, cells_of, has_unfinished_line, lines_of
from fedpatch.shared.tasks.reading.damaged_rows import DamagedRow
from fedpatch.shared.tasks.reading.folder_listing import reading_files
from fedpatch.shared.tasks.reading.readings_format import ReadingsFormat, usual_time
from fedpatch.shared.tasks.reading.readings_table import CellReaders, Places, ReadingsTable, TableBuilder

_SEPARATORS = (",", ";", "\t", "|", " ")
_EXCEL_MARK = "sep="
_EXCEL_ERROR = re.compile(r"#(?:N/A|NV|[A-Z][A-Z0-9/]*[!?])\s*(?:[,;|\t]|$)")
_SHOWN_COLUMNS = 12
_HEAD = 10  # rows in one of which a column that is only called like one of times must have a time
_PREAMBLE = 100  # lines in which the names of the columns are looked for, for an error message


class _Header(Exception):
    """A file whose columns are not those of the format. The text is the reason."""


def read_table(place: Path, form: ReadingsFormat, *, for_prediction: bool = False) -> ReadingsTable:
    """Read a file, or all `*.csv` files of a folder, in natural order of their names.

    Args:
        place: The file or folder.
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
    for file in files:
        builder.begin(printable(str(file)), printable(file.name))
        try:
            complete = _read_file(builder, file, used, form if for_prediction else None)
        except (OSError, UnreadableFile, _Header) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            what = f"cannot be read: {words}" if isinstance(error, OSError) else words
            builder.refuse(f"{printable(str(file))}: {what}")
        else:
            if complete:
                builder.end()
        if builder.failures and not is_folder:
            raise DataError(builder.failures[0])
    return builder.table()


def _read_file(builder: TableBuilder, file: Path, form: ReadingsFormat, predicted: ReadingsFormat | None) -> bool:
    """Add the rows of a file; False where it has no complete line yet."""
    lines = _plain_lines(file, form.comment)
    head = list(islice(lines, _HEAD))
    if not head:
        cut = has_unfinished_line(file)
        builder.note(
            f"{printable(str(file))}: holds no complete line yet{'; end its line with a line break' if cut else ''}"
        )
        return False
    try:
        header, columns, places = _columns(_telling_line(head, form, predicted), form, predicted)
    except _Header as why:
        raise _Header(f"{why}{_header_below(chain(head[1:], lines), form, predicted)}") from None
    if header:
        del head[0]
    if not form.time and places.time >= 0:
        places = _with_usable_time(builder, head, columns, places, form, printable(str(file)))
    for number, text in chain(head, lines):
        try:
            cells = _whole_row(text, form.delimiter, columns)
        except DamagedRow as damage:
            builder.damaged(number, str(damage))
            continue
        if header and [one.strip(BLANKS) for one in cells] == header:
            continue  # the header again: files were joined, or the logger restarted
        if _is_other_header(cells, header, places, form):
            raise _Header(
                f"line {number} names other columns than the first line, or in another order: {_shown(cells)}; "
                "begin a new file with this line"
            )
        builder.add(cells, places, number)
    return True


def _telling_line(
    head: Sequence[tuple[int, str | None]], form: ReadingsFormat, predicted: ReadingsFormat | None
) -> str | None:
    """Return the line that shows the columns of a file: the first one, or another where the first one is cut.

    A file without a header may begin in the middle of a line, as where a log was rotated.
    """
    first = head[0][1]
    if not (form.names or predicted) or not _has_number(first, form):
        return first
    whole = [text for _, text in head if _has_number(text, form)]
    counts = [str(text).rstrip(form.delimiter + BLANKS).count(form.delimiter) for text in whole]
    return whole[counts.index(max(counts, key=counts.count))]


def _has_number(text: str | None, form: ReadingsFormat) -> bool:
    return text is not None and any(_is_number(one.strip(BLANKS), form.decimal) for one in text.split(form.delimiter))


def _with_usable_time(
    builder: TableBuilder,
    head: Iterable[tuple[int, str | None]],
    columns: int,
    places: Places,
    form: ReadingsFormat,
    shown: str,
) -> Places:
    """Return the positions without that of the time, if nobody named its column and no line of the head has a time in it."""
    refused = ""
    for _, text in head:
        try:
            time_in(_whole_row(text, form.delimiter, columns)[places.time], form.decimal)
        except RefusedValue as why:
            refused = refused or str(why)
        except DamagedRow:
            continue
        else:
            return places
    if refused:
        builder.note(f"{shown}: no time is used: {refused}")
    return replace(places, time=-1)


def _header_below(
    lines: Iterable[tuple[int, str | None]], form: ReadingsFormat, predicted: ReadingsFormat | None
) -> str:
    """Return the remedy where a logger wrote other lines above the names of the columns; "" where it did not."""
    needed = form.needed if predicted is None else form.inputs
    for number, text in islice(lines, _PREAMBLE):
        if text and {*needed} <= {one.strip(BLANKS + '"') for one in text.split(form.delimiter)}:
            return f"; line {number} has these columns: remove the lines before it, or begin them with a comment mark"
    return ""


def _plain_lines(file: Path, comment: str) -> Iterator[tuple[int, str | None]]:
    for number, text in lines_of(file):
        if text is None or not comment or not _is_comment(text.lstrip(BLANKS), comment):
            yield number, text


def _is_comment(text: str, comment: str) -> bool:
    """Return whether a line is a comment; a first cell such as "#N/A" is an error of Excel."""
    return text.startswith(comment) and not _EXCEL_ERROR.match(text)


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
    needed, target = (form.needed, form.target) if predicted is None else (form.inputs, predicted.target)
    if all(name in found for name in needed):
        return found, len(found), _places(found, form, target)
    if form.names and len(found) == len(form.names):
        return [], len(form.names), _where_values_are(found, _places(form.names, form, target), form, predicted)
    alike = {plain_spelling(one) for one in found} & {plain_spelling(one) for one in form.inputs}
    if predicted is not None and not alike:
        places = _without_header(text, found, form, predicted)
        return [], len(found), _where_values_are(found, places, form, predicted)
    absent = ", ".join(name for name in needed if name not in found)
    raise _Header(f"no column {absent}; there is {_shown(found)}{_hint(text, found, needed, form)}")


def _where_values_are(
    found: Sequence[str], places: Places, form: ReadingsFormat, predicted: ReadingsFormat | None
) -> Places:
    """Return the positions in a file without a header. _Header if its first line is the header of other columns."""
    if _has_words(found, places) and not {*found} & {*(predicted or form).classes}:
        raise _Header(
            f"its first line has {_shown(found)}, no values of {', '.join(form.inputs)}; write these names if it is the "
            "header, else remove the line"
        )
    return places


def _is_other_header(cells: Sequence[str], header: Sequence[str], places: Places, form: ReadingsFormat) -> bool:
    """Return whether a line names columns again, at other places: the logger was changed, or another file was joined."""
    if not _has_words(cells, places):
        return False
    names = dict(zip(places.inputs, form.inputs, strict=True))
    names |= {places.target: form.target, places.time: form.time, places.group: form.group}
    if header:
        names = {place: header[place] for place in names if place >= 0}
    there = {place: cells[place].strip(BLANKS) for place, name in names.items() if name and place >= 0}
    return bool({*there.values()} & {*header, *form.needed}) and any(names[one] != name for one, name in there.items())


def _has_words(cells: Sequence[str], places: Places) -> bool:
    """Return whether all inputs of a line are words, as in a header."""
    bare = [cells[place].strip(BLANKS) for place in places.inputs]
    return all((one[:1].isalpha() or one[:1] == "_") and not is_missing(one) for one in bare)


def _without_header(text: str, found: Sequence[str], form: ReadingsFormat, predicted: ReadingsFormat) -> Places:
    """Return positions in a file for prediction without a header.

    Its lines have the format's `names`, of which target, group and time may be absent; without `names`, time, inputs and
    target in this order, both ends optional.
    """
    if predicted.names:
        return _places_of_names(text, found, form, predicted)
    count, more = len(form.inputs), len(found) - len(form.inputs)
    ends = [(time, target) for time in (0, 1) for target in (0, 1 if predicted.target else 0) if time + target == more]
    if len(set(ends)) > 1 and not predicted.classes:
        raise _Header(
            f"its first line has {len(found)} cells, one more than inputs, which could be the time or the target; give the "
            "file a header line, or the task's format all names of the columns: names=[...]"
        )
    if len(set(ends)) > 1:
        ends = [(0, 1) if found[-1] in predicted.classes else (1, 0)]
    if not ends:
        wanted = ", ".join(form.inputs)
        raise _Header(
            f"its first line has {len(found)} cells and is no header with {wanted}; without a header each line has {wanted}, "
            f"and may have the time before and the target after them{_hint(text, found, form.inputs, form)}"
        )
    time = ends[0][0]
    return Places(tuple(range(time, time + count)), time=time - 1)


def _places_of_names(text: str, found: Sequence[str], form: ReadingsFormat, predicted: ReadingsFormat) -> Places:
    one, two, three = predicted.target, predicted.group, predicted.time
    orders = [
        [name for name in predicted.names if name not in absent]
        for absent in ((one,), (one, two), (one, three), (one, two, three))
    ]
    fitting = [order for order in orders if len(order) == len(found)]
    if len({tuple(order.index(name) for name in form.inputs) for order in fitting}) == 1:
        usable = [order for order in fitting if three not in order or _is_time(found[order.index(three)], form.decimal)]
        return _places((usable or fitting)[0], form, predicted.target)
    optional = ", ".join(name for name in predicted.names if name in (one, two, three))
    wanted = ", ".join(predicted.names)
    raise _Header(
        f"its first line has {len(found)} cells and is no header with {', '.join(form.inputs)}; without a header each line has "
        f"{wanted}, and may lack {optional or 'none of them'}{_hint(text, found, form.inputs, form)}"
    )


def _places(found: Sequence[str], form: ReadingsFormat, target: str) -> Places:
    for name in form.needed:
        if found.count(name) > 1:
            raise _Header(f"it has column {name!r} twice; rename one of them")
    time = form.time or usual_time(found, form.inputs, (target, form.group))

    def place(name: str) -> int:
        return found.index(name) if name and name in found else -1

    return Places(tuple(map(place, form.inputs)), place(form.target), place(time), place(form.group))


def _hint(text: str, found: Sequence[str], needed: Sequence[str], form: ReadingsFormat) -> str:
    if text.startswith(_EXCEL_MARK):
        mark = text.removeprefix(_EXCEL_MARK).strip("\r\n") or "\t"
        return f"; this line is for Excel: remove it, and set delimiter={mark!r}"
    for one in _SEPARATORS:
        parts = [part.strip(BLANKS) for part in text.split(one)]
        if one != form.delimiter and (
            all(name in parts for name in needed) or (len(parts) > len(found) and _are_values(parts, form, one))
        ):
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


def _are_values(parts: Sequence[str], form: ReadingsFormat, separator: str) -> bool:
    """Return whether the parts of a line have enough numbers for the inputs; words with a number have blanks too."""
    numbers = sum(_is_number(one, ".") or _is_number(one, ",") for one in parts)
    return numbers >= max(len(form.inputs), 2 if separator == " " else 1)


def _is_time(text: str, decimal: str) -> bool:
    try:
        return bool(time_in(text, decimal))
    except RefusedValue:
        return False


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

    def plain(text: str) -> str:
        return text.strip(BLANKS)

    target = None
    if form.target:
        target = label_reader(form.classes, is_missing, plain) if form.classes else partial(number_or_classes, number)
    return CellReaders(
        number,
        target,
        lambda text: None if is_missing(text) else time_in(text, decimal),
        lambda text: "" if is_missing(text) else plain(text),
    )
