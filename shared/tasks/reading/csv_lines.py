"""The lines of a file of readings, one after the other, with bounded memory.

A cell ends with its line at the latest: so an unclosed quote damages one line and not the rest of the file. A last line
without its end is left for the next time, because a logger may still write it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from fedpatch.shared.tasks.reading.cell_values import BLANKS
from fedpatch.shared.tasks.reading.damaged_rows import DamagedRow

LONGEST_LINE = 2**20
"""Bytes of the longest line; a longer one is damaged."""
_PIECE_BYTES = 2**16

_MARK = b"\xef\xbb\xbf"
# The first bytes of files that are no lines of cells, with the remedy.
_FOREIGN = {
    b"\xff\xfe": "is text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "is text in UTF-16; save it as UTF-8",
    b"\x1f\x8b": "is compressed with gzip; decompress it",
    b"BZh": "is compressed with bzip2; decompress it",
    b"\xfd7zXZ": "is compressed with xz; decompress it",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; decompress it",
    b"PK\x03\x04": "is a workbook or a zip archive; save it as CSV",
    b"\xd0\xcf\x11\xe0": "is a workbook of an old Excel; save it as CSV",
    b"PAR1": "is a Parquet file; read it with pandas, and give the frame to examples.from_frame",
    b"ARROW1": "is an Arrow file; read it with pandas, and give the frame to examples.from_frame",
    b"\x89HDF": "is an HDF5 file; read it with pandas, and give the frame to examples.from_frame",
    b"\x93NUMPY": "is an array of numpy; give it to examples.from_arrays",
    b"SQLite format 3": "is a database of SQLite; export the table as CSV",
    b"%PDF": "is a PDF; save its table as CSV",
    b'{"': "is JSON; read it with pandas, and give the frame to examples.from_frame",
    b"[{": "is JSON; read it with pandas, and give the frame to examples.from_frame",
    b"<!DOCTYPE": "is a web page, perhaps of a failed download; download the file itself",
    b"<html": "is a web page, perhaps of a failed download; download the file itself",
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: git lfs pull",
}


class UnreadableFile(Exception):
    """A file that is no text in UTF-8. The text is the reason."""


def foreign_kind(head: bytes) -> str:
    """Return what a file with these first bytes is, with the remedy; "" if it may be text in UTF-8."""
    return next((what for mark, what in _FOREIGN.items() if head.removeprefix(_MARK).startswith(mark)), "")


def lines_of(path: Path) -> Iterator[tuple[int, str | None]]:
    """Yield number and text of each complete line that is not empty; None for a line that is too long or holds NUL.

    Bytes that are not UTF-8 become U+FFFD: they damage a line only in a cell that is read.

    Raises:
        OSError: The file cannot be read.
        UnreadableFile: The file is of another kind, such as UTF-16, compressed or a workbook.
    """
    with path.open("rb") as stream:
        number, whole = 0, True
        while piece := stream.readline(LONGEST_LINE):
            begins, whole = whole, piece.endswith(b"\n")
            number += begins
            if number == 1 and begins:
                if what := foreign_kind(piece):
                    raise UnreadableFile(what)
                piece = piece.removeprefix(_MARK)
            if not whole:
                if begins and (len(piece) < LONGEST_LINE - 3 or (number == 1 and b"\r" in piece)):
                    # line ends of old systems, or the unfinished end of the file
                    yield from _old_lines(chain([piece], iter(partial(stream.read, _PIECE_BYTES), b"")), number)
                    return
                elif begins:
                    yield number, None
                continue
            if begins and piece.strip():
                yield number, _text(piece)


def _old_lines(pieces: Iterator[bytes], number: int) -> Iterator[tuple[int, str | None]]:
    """Yield the lines of a file whose lines end with a carriage return alone; without one, the line has no end yet."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\r")
        for line in lines:
            if line.strip():
                yield number, _text(line)
            number += 1
        if len(rest) >= LONGEST_LINE:
            yield number, None
            rest = b""


def has_unfinished_line(path: Path) -> bool:
    """Return whether the last line of a file has no end."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            if not stream.tell():
                return False
            stream.seek(-1, 2)
            return stream.read(1) not in (b"\n", b"\r")
    except OSError:
        return False


def cells_of(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line. DamagedRow where a quote is not closed."""
    if '"' in line:
        try:
            rows = list(csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True))
        except csv.Error:
            raise DamagedRow("a quote is not closed, or stands inside a cell") from None
        cells = rows[0] if rows else []
    else:
        cells = line.split() if delimiter == " " else line.split(delimiter)
    if cells and delimiter != ";":
        cells[-1] = cells[-1].rstrip(BLANKS).removesuffix(";")  # some loggers end a line with a semicolon
    return cells


def _text(piece: bytes) -> str | None:
    """Return the text of a line without its end, which may be "LF CR"; None if it holds NUL."""
    return None if b"\0" in piece else piece.strip(b"\r\n").decode("utf-8", "replace")
