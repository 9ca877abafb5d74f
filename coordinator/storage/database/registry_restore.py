"""A damaged registry is kept as `.damaged`, and its verified copy, `.before`, takes its place.

The journals (coordinator.storage.run_journal) restore changes that the copy lacks, and the last transactions after damage to
SQLite's log.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fedpatch.coordinator.storage.database.registry_damage import rebuild_hint, registry_problem
from fedpatch.coordinator.storage.database.registry_files import PARTS, copy_of, damaged_of
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import StateError

_log = logging.getLogger("fedpatch.registry")


def set_aside(path: Path) -> None:
    """Rename a registry, with its log, to `damaged_of(path)`, if it exists."""
    aside = damaged_of(path)
    # The log is moved last: a registry whose damage is in its log would look whole without the log.
    for part in PARTS:
        found = path.with_name(path.name + part)
        if found.exists():
            os.replace(found, aside.with_name(aside.name + part))


def restore_copy(path: Path) -> bool:
    """Replace a damaged or missing registry by its copy; return whether that was done. The caller has the exclusive lock."""
    copy = copy_of(path)
    problem = registry_problem(path)
    if problem is None:
        return False
    if not copy.is_file():
        raise StateError(f"{path}: {problem}; {rebuild_hint(path)}")
    of_copy = registry_problem(copy)
    if of_copy is not None:
        hint = rebuild_hint(path) if journals(path.parent) else "move both away"
        raise StateError(f"{path}: {problem}, and its copy {copy} {of_copy}; {hint}")
    kept = f"it is now {damaged_of(path).name}, and " if path.is_file() else ""
    _put_copy_in_place(path)
    _log.warning("%s: %s; %sits copy %s is in its place", path, problem, kept, copy.name)
    return True


def _put_copy_in_place(path: Path) -> None:
    """Move the file at `path` aside and put the copy there. The copy stays; an interrupted call can be repeated."""
    set_aside(path)
    write_atomic(path, copy_of(path).read_bytes())
