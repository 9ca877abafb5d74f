"""A table of results on disk: one JSON object a line (JSON Lines), so that a new result changes one line."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import UsageError

Record = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)

UNFINISHED = ".unfinished"
"""Folder beside a table for locks, and for the state of unfinished work."""
_READABLE = 0o644  # results are shared


class JsonLines(Generic[Key]):
    """The records of a table; each is written as soon as it is computed.

    Several processes may write to one file: a lock keeps the records of all.

    Args:
        path: The file, made with its folder for the first record.
        key: Returns the terms that identify a record.

    Raises:
        UsageError: A line is damaged, or two lines have the same terms. Each method that reads raises it.
    """

    def __init__(self, path: Path, key: Callable[[Record], Key]) -> None:
        self.path = path
        self._key = key
        self._read_at: tuple[int, int, int] | None = None
        self._lines: dict[Key, bytes] = {}

    @property
    def keys(self) -> list[Key]:
        """Return the terms of all records, in the order of the file."""
        self._read()
        return list(self._lines)

    def get(self, key: Key) -> Record | None:
        """Return the record with these terms; None if there is none."""
        self._read()
        line = self._lines.get(key)
        return None if line is None else _record(line)

    def records(self) -> list[Record]:
        """Return all records, in the order of the file."""
        self._read()
        return [_record(line) for line in self._lines.values()]

    def put(self, record: Record) -> None:
        """Write a record in the place of the one with the same terms, or at the end."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
        with self._locked():
            self._write({**self._lines, self._key(record): line})

    def delete(self, key: Key) -> None:
        """Delete the record with these terms."""
        with self._locked():
            self._write({one: line for one, line in self._lines.items() if one != key})

    def place(self, key: Key) -> str:
        """Return file and line of a record, for messages."""
        return f"{self.path}, line {self.keys.index(key) + 1}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait for the other processes that write, and read what they wrote."""
        lock = self.path.parent / UNFINISHED / f"{self.path.name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self._read()
            yield

    def _write(self, lines: dict[Key, bytes]) -> None:
        write_atomic(self.path, b"".join(line + b"\n" for line in lines.values()), mode=_READABLE)

    def _read(self) -> None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._read_at, self._lines = None, {}
            return
        read_at = (found.st_ino, found.st_mtime_ns, found.st_size)
        if read_at == self._read_at:
            return
        lines: dict[Key, bytes] = {}
        for number, line in enumerate(self.path.read_bytes().splitlines(), 1):
            key = self._key_of(number, line)
            if key in lines:
                raise UsageError(f"{self.path}, line {number} repeats an earlier line ({key}); delete one of the two")
            lines[key] = line
        self._read_at, self._lines = read_at, lines

    def _key_of(self, number: int, line: bytes) -> Key:
        try:
            key = self._key(_record(line))
            hash(key)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{self.path}, line {number} is damaged ({error}); delete the line to compute it again"
            ) from error
        return key


def _record(line: bytes) -> Record:
    record: Record = json.loads(line)
    return record
