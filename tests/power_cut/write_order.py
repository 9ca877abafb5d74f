"""Laws on the order of writes, renames and syncs in a recorded process.

A disk after a power cut holds the synced changes and any part of the others (tests.power_cut.disk). So the order alone shows
whether state can be lost, without a disk that is built and read:

- before a mark, on which others rely, every change is durable;
- before a file is renamed to its place, its bytes are durable;
- before a name is replaced, the former change of this name is durable;
- before a file that vouches for others appears, the others are durable.

A deletion may wait, except before a mark `deleted`.

`MAY_BE_LOST` has the exceptions. The slow tests of power cuts build the disks and continue from each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from tests.power_cut.disk import Names, Output, Record, Resize, Step, Sync, Write

MAY_BE_LOST = {
    r"-shm$": "SQLite rebuilds its index of the log",
    r"^Names .*-wal$": "SQLite syncs the directory of a log before it relies on the log",
    r"\.before\.[^/]*-(journal|wal)$": "a copy of a registry in the making, which is synced as a whole at its end",
    r"sqlite3-journal$": "SQLite resets or deletes its journal after the commit",
    r"/\.?delta-[^/]*$": "differences are computed again from the checkpoints",
}
"""Kind and path of the unsynced changes that are harmless, and the reason."""

VOUCHES = (
    r"/registry\.sqlite3-wal$",
    r"/spool/offer\.msgpack$",
    r"/SHA256SUMS$",
    r"/models/\w+/(current|\d{6}-[^/]*)$",
)
"""Names and files that say that other files are there."""
DELETED = "deleted"
"""A mark on which others rely that deleted files stay deleted."""


def _matches(patterns: Sequence[str], path: str) -> bool:
    return any(re.search(pattern, path) for pattern in patterns)


def _path(step: Step) -> str:
    return "" if isinstance(step.what, Output) else step.what.path


def _deletes_only(step: Step) -> bool:
    """A file that reappears after a power cut is old state, which every reader of a state directory recognises."""
    return isinstance(step.what, Names) and all(inode is None for _, _, inode in step.what.changes)


class _Pending:
    """Changes that no sync has made durable, while a record is read step by step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def take(self, step: Step) -> None:
        match step.what:
            case Sync(inode=inode):
                self.steps = [one for one in self.steps if not _is_flushed(one, inode, step.began)]
            case Write() | Resize() | Names():
                self.steps.append(step)

    def on_inode(self, inode: int) -> list[Step]:
        return [one for one in self.steps if isinstance(one.what, Write | Resize) and one.what.inode == inode]

    def on_name(self, directory: int, name: str) -> list[Step]:
        return [
            one
            for one in self.steps
            if isinstance(one.what, Names)
            and not _deletes_only(one)
            and any(change[:2] == (directory, name) for change in one.what.changes)
        ]


def _made_as(changes: Sequence[tuple[int, str, int | None]], pending: _Pending) -> Iterator[str]:
    """Yield the paths under which renamed files were made."""
    moved = {inode for _, _, inode in changes if inode is not None}
    for one in pending.steps:
        if isinstance(one.what, Names) and any(inode in moved for _, _, inode in one.what.changes):
            yield _path(one)


def _is_flushed(step: Step, inode: int, began: int) -> bool:
    if step.ended >= began:
        return False
    if isinstance(step.what, Names):
        return all(directory == inode for directory, _, _ in step.what.changes)
    return isinstance(step.what, Write | Resize) and step.what.inode == inode


def _broken_by(step: Step, pending: _Pending) -> Iterator[tuple[str, Step]]:
    """Yield each change that must be durable before `step`, and is not."""
    match step.what:
        case Output(data=data):
            deleted = json.loads(data)["what"] == DELETED
            for one in pending.steps:
                if deleted or not _deletes_only(one):
                    yield f"before the mark {data.decode()[:60].strip()}", one
        case Write(path=path) if _matches(VOUCHES, path):
            yield from _others(pending, {path}, path)
        case Names(changes=changes, path=path) if not _deletes_only(step):
            if _matches(VOUCHES, path):
                yield from _others(pending, {path, *_made_as(changes, pending)}, path)
            for directory, name, inode in changes:
                if inode is not None:
                    for one in (*pending.on_inode(inode), *pending.on_name(directory, name)):
                        yield f"before {path} is replaced", one


def _others(pending: _Pending, own: set[str], path: str) -> Iterator[tuple[str, Step]]:
    for one in pending.steps:
        if _path(one) not in own and not _deletes_only(one):
            yield f"before {path}, which vouches for it", one


def order_problems(record: Record) -> Iterator[str]:
    """Yield a sentence for each change of the record that a power cut can undo although others rely on it."""
    pending = _Pending()
    for step in record.steps:
        for why, one in _broken_by(step, pending):
            change = f"{type(one.what).__name__} {_path(one)}"
            if not _matches(tuple(MAY_BE_LOST), change):
                yield f"{change} is not durable {why}"
        pending.take(step)
