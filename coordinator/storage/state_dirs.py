"""Finds the state directory of a run: the one that is named, or one in which runs were started before.

So `fedpatch show RUN` works after `fedpatch demo --out DIR` without a path. The paths of state directories are noted, the
latest first, in `$XDG_STATE_HOME/fedpatch/state-dirs` (~/.local/state by default).
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.database import exists
from fedpatch.coordinator.storage.run_registry import LAST, REGISTRY_FILE, Registry
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import StateError, UsageError

DEMO_SUBDIRECTORY = "coordinator"
MAX_NOTED = 50

_SHOWN_MATCHES = 5

_log = logging.getLogger("fedpatch.coordinator")


def remember(state_dir: Path) -> None:
    """Note a state directory; if the home directory cannot be written, nothing is noted.

    If there are too many notes, missing directories are dropped first, so that temporary ones do not displace others.
    """
    latest = [str(state_dir.absolute())]
    lines = latest + [line for line in _noted() if line not in latest]
    if (excess := len(lines) - MAX_NOTED) > 0:
        gone = [line for line in reversed(lines[1:]) if not _has_runs(Path(line))][:excess]
        lines = [line for line in lines if line not in gone]
    try:
        _notes().parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_notes(), "".join(f"{line}\n" for line in lines[:MAX_NOTED]).encode())
    except (OSError, RuntimeError, UnicodeError) as error:
        _log.debug("the state directory is not noted: %s", error)


def default() -> Path:
    """Return the state directory for runs without --state-dir: a directory in the current one."""
    return RunSettings.state_dir.absolute()


def find(named: Path | None, run: str | None = None) -> Path:
    """Return the state directory to read; it may not exist.

    Args:
        named: The directory of --state-dir, or the directory of a demo. It is used as it is.
        run: Id of a run, or its beginning, that is searched in all noted directories. Without an id (None, "last") the result
            is the default directory or, if that has no runs, the latest one with runs.

    Raises:
        UsageError: No directory has the run, or several runs match.
    """
    if named is not None:
        named = named.expanduser().absolute()
        inner = named / DEMO_SUBDIRECTORY
        return inner if not _has_runs(named) and _has_runs(inner) else named
    places = with_runs()
    if not places:
        return default()
    return places[0] if run in (None, LAST) else _place_of(str(run), places)


def with_runs() -> list[Path]:
    """Return the directories with runs: the default one, then the noted ones, the latest first.

    A noted directory that belongs to another user by now is left out.
    """
    noted = [place for place in map(Path, _noted()) if _is_own(place)]
    return [place for place in dict.fromkeys((default(), *noted)) if _has_runs(place)]


def find_to_resume(named: Path | None, run: str) -> Path:
    """Return the directory as `find` does, but "last" never means a run of another directory: a resume changes the run.

    Raises:
        UsageError: The default directory has no runs; the error names the directory to use.
    """
    found = find(named, run)
    if named is None and run == LAST and found != default():
        raise UsageError(
            f"no runs in {default()}, and the last one elsewhere may not be the one you mean; "
            f"say `fedpatch resume last --state-dir {shlex.quote(str(found))}` if it is"
        )
    return found


def _place_of(run: str, places: Sequence[Path]) -> Path:
    """Return the directory that has the run of that id, or the only run whose id begins so."""
    matches: dict[str, Path] = {}
    damaged = []
    for place in places:
        try:
            with Registry(place / REGISTRY_FILE, readonly=True) as registry:
                ids = [info.id for info in registry.runs()]
        except (StateError, UsageError):  # one that is damaged, or gone by now, hides no other
            damaged.append(place)
            continue
        if run in ids:
            return place
        for one in ids:
            if run and one.startswith(run):
                matches.setdefault(one, place)
    if len(matches) > 1:
        shown = ", ".join(f"{one} in {place}" for one, place in list(matches.items())[:_SHOWN_MATCHES])
        raise UsageError(f"run {run!r} could be any of {shown}; write more of the id, or name one with --state-dir")
    if not matches:
        searched = ", ".join(str(place) for place in places if place not in damaged) or "nothing"
        unread = f"; cannot be read: {', '.join(map(str, damaged))}" if damaged else ""
        raise UsageError(
            f"unknown run {run!r} (searched: {searched}{unread}); `fedpatch runs --state-dir PATH` lists those in PATH"
        )
    return next(iter(matches.values()))


def _has_runs(place: Path) -> bool:
    return exists(place / REGISTRY_FILE)


def _is_own(place: Path) -> bool:
    try:
        return place.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _notes() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fedpatch" / "state-dirs"


def _noted() -> Iterator[str]:
    try:
        text = _notes().read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        return
    yield from (line for line in text.splitlines() if line.startswith("/"))
