"""The names of a registry's SQLite files.

Beside `registry.sqlite3` (and its -wal and -shm while it is open) are

    registry.sqlite3.before     its copy (coordinator.storage.database.registry_copy)
    registry.sqlite3.damaged    a damaged registry that the copy has replaced, with its -wal and -shm
    registry.sqlite3.lock       locked shared by processes that write, exclusively while the copy replaces the registry
"""

from __future__ import annotations

from pathlib import Path

from fedpatch.shared.app.files import stamp_of

PARTS = ("", "-wal", "-shm")


def stamp_of_parts(path: Path) -> tuple[int, ...]:
    """Return a value that changes with the content of the registry at `path` or of its log."""
    log = path.with_name(f"{path.name}-wal")
    try:
        is_empty = not log.stat().st_size  # a connection that only reads makes an empty log anew
    except OSError:
        is_empty = True
    return stamp_of(path) if is_empty else (*stamp_of(path), *stamp_of(log))


def copy_of(path: Path) -> Path:
    """Return the path of the copy of the registry at `path`."""
    return path.with_name(f"{path.name}.before")


def damaged_of(path: Path) -> Path:
    """Return the path to which a damaged registry is moved with its log; an older one there is replaced."""
    return path.with_name(f"{path.name}.damaged")
