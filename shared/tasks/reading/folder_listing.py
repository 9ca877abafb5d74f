"""The files of a folder that a logger writes: which count, and in which order."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedpatch.shared.app.formatting import printable
from fedpatch.shared.errors import DataError

SUFFIX = ".csv"
_SHOWN = 3


def reading_files(place: Path) -> list[Path]:
    """Return the files with readings: `place` itself, or the `*.csv` files of the folder `place`, in natural order.

    Hidden files and everything that is no regular file (folders, pipes, sockets, dangling links) do not count. The suffix may
    have any case. In natural order 2.csv comes before 10.csv.

    Raises:
        DataError: `place` is absent, is no regular file, or has no such file.
    """
    shown = printable(str(place))
    try:
        if not place.is_dir():
            if not place.exists():
                raise DataError(
                    f"{shown}: cannot be read: there is no such file or folder; name the readings of this device"
                )
            if not place.is_file():
                raise DataError(f"{shown}: cannot be read: it is no regular file; copy its content into a file")
            return [place]
        with os.scandir(place) as entries:
            names = sorted((entry.name for entry in entries if _counts(entry)), key=_natural)
    except OSError as error:
        raise DataError(f"{shown}: cannot be read: {error.strerror or error}; let this user read it") from error
    if not names:
        raise DataError(
            f"{shown}: the folder has no *{SUFFIX} file{_others(place)}; give the folder with the readings of this device"
        )
    return [place / name for name in names]


def files_version(place: Path | str) -> str:
    """Return a text that changes when the files of `place` change, for `Task.data_version`; "" while there are none.

    Args:
        place: The file or folder, as for `read_csv`.

    Returns:
        Number, sizes and newest time of the files.

    Example:
        >>> import tempfile
        >>> from fedpatch import examples
        >>> examples.files_version(tempfile.mkdtemp())
        ''
    """
    try:
        files = reading_files(Path(place))
    except DataError:
        return ""
    known: list[os.stat_result] = []
    for file in files:
        try:
            known.append(file.stat())
        except OSError:  # it was deleted meanwhile
            continue
    newest = max((one.st_mtime_ns for one in known), default=0)
    return f"{len(known)}/{sum(one.st_size for one in known)}/{newest}"


def _counts(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or not entry.name.lower().endswith(SUFFIX):
        return False
    try:
        return entry.is_file()
    except OSError:  # a link into a folder that this user may not enter
        return False


def _natural(name: str) -> tuple[list[str | int], bytes]:
    """Return a key that compares runs of digits as numbers; equal keys are ordered by their bytes."""
    parts = re.split("([0-9]+)", name.casefold())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], os.fsencode(name)


def _others(place: Path) -> str:
    names = sorted(printable(name) for name in os.listdir(place) if not name.startswith("."))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f" (it has {', '.join(names[:_SHOWN])}{more})" if names else ""
