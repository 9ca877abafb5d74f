"""Finds the state directory of a run: the named one, or one below the current directory; and the lock of a fleet in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.database.opening import URL_FILE, exists
from fedpatch.coordinator.storage.run_journal import RUNS
from fedpatch.coordinator.storage.run_registry import LAST, REGISTRY_FILE, Registry
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.app.locks import is_held
from fedpatch.shared.errors import StateError, UsageError

DEMO_SUBDIRECTORY = "coordinator"
_DEMO_OUTS = ("demo-out", "fedpatch-demo")
"""Directories of `make demo` and of `fedpatch demo`."""


def fleet_lock_file(state_dir: Path, fleet: str) -> Path:
    """Return the file that a coordinator of `fleet` locks in its state directory while it runs."""
    return state_dir / f"fleet-{fleet}.lock"


def is_at_work(fleet: str, state_dir: Path, registry: Registry) -> bool:
    """Return whether a coordinator of `fleet` has its lock: the file in the state directory, or the one in PostgreSQL.

    The coordinators of a registry in PostgreSQL may be on other machines. PostgreSQL releases the lock of a killed one at once,
    and the lock of a machine that lost its network when the server's keep-alive notices.

    Args:
        registry: The open registry of that directory.

    Raises:
        OSError: Another user owns the file, or no coordinator has used the directory.
    """
    if (state_dir / URL_FILE).exists():
        return registry.is_led(fleet)
    return is_held(fleet_lock_file(state_dir, fleet))


def is_locked_here(state_dir: Path, fleet: str, *, unreadable: bool = False) -> bool:
    """Return whether a process of this machine has the lock of a fleet in a state directory; False where there can be none.

    Args:
        unreadable: The answer for a file that cannot be read, such as that of another user.
    """
    try:
        return is_held(fleet_lock_file(state_dir, fleet))
    except (FileNotFoundError, StateError):  # nobody has used the directory, or its file system has no locks
        return False
    except OSError:
        return unreadable


def as_it_is(run: RunInfo, state_dir: Path, registry: Registry) -> RunInfo:
    """Return the run; "interrupted" if it is "running" in the registry and no coordinator has the fleet's lock (a kill).

    Its model has its present path, also after the state directory was moved.

    Args:
        run: The run as the registry has it.
        registry: The open registry of that directory.
    """
    run = replace(run, model=_present_model(run, state_dir))
    if run.status != "running":
        return run
    try:
        at_work = is_at_work(str(run.settings.get("fleet", "")), state_dir, registry)
    except OSError:
        return run
    return run if at_work else replace(run, status="interrupted")


def _present_model(run: RunInfo, state_dir: Path) -> str | None:
    """Return the path of the model in the run's directory; if there is none, the path or URL in the registry."""
    here = state_dir.absolute() / RUNS / run.id / Path(run.model or "").name
    return str(here) if run.model and os.path.exists(here) else run.model


def refuse_run_of_hub(run: RunInfo, state_dir: Path) -> None:
    """Raise UsageError for a run of a hub. A relay's state directory has only the rounds of its site."""
    if (hub := run.settings.get("parent")) is not None:
        raise UsageError(
            f"run {run.id} is a run of the fleet {hub}, of which {state_dir} has the rounds of one site; name the state "
            "directory of that fleet's coordinator (--state-dir)"
        )


def default() -> Path:
    """Return the state directory for runs without --state-dir: a directory in the current one."""
    return RunSettings.state_dir.absolute()


def with_runs() -> list[Path]:
    """Return the directories below the current one that have runs: the default, then those of demos."""
    demos = [Path(out, DEMO_SUBDIRECTORY).absolute() for out in _DEMO_OUTS]
    return [place for place in (default(), *demos) if _has_runs(place)]


def find(named: Path | None, run: str | None = None) -> Path:
    """Return the state directory to read; it may not exist.

    Args:
        named: The directory of --state-dir, or the directory of a demo. It is used as it is.
        run: Id of a run, or its beginning. Without an id (None, "last") the result is the first directory with runs.

    Raises:
        UsageError: No directory has the run, or several runs match.
        StateError: The named directory cannot be read.
    """
    if named is not None:
        named = named.expanduser().absolute()
        inner = named / DEMO_SUBDIRECTORY
        with refusals_of(named):
            return inner if not _has_runs(named) and _has_runs(inner) else named
    places = with_runs()
    if len(places) < 2 or run in (None, LAST):
        return places[0] if places else default()
    return _place_of(str(run), places)


def find_to_resume(named: Path | None, run: str) -> Path:
    """Return the directory as `find` does, but "last" never means a run of another directory: a resume changes the run.

    Raises:
        UsageError: The default directory has no runs; the error names the directory to use.
    """
    found = find(named, run)
    if named is None and run == LAST and found != default():
        raise UsageError(
            f"no runs in {default()}, and the last one elsewhere may not be the one you mean; "
            f"if it is, name its directory: --state-dir {shlex.quote(str(found))}"
        )
    return found


def _place_of(run: str, places: Sequence[Path]) -> Path:
    """Return the directory that has the run with the id `run`, or the only run whose id begins with it."""
    matches: dict[str, Path] = {}
    for place in places:
        try:
            with Registry(place / REGISTRY_FILE, readonly=True) as registry:
                matches |= {info.id: place for info in registry.runs() if run and info.id.startswith(run)}
        except (StateError, UsageError):  # a damaged directory does not hide the others
            continue
    if run in matches:
        return matches[run]
    if len(matches) > 1:
        shown = ", ".join(f"{one} in {place}" for one, place in matches.items())
        raise UsageError(f"run {run!r} could be any of {shown}; write more of the id, or name one with --state-dir")
    if not matches:
        searched = ", ".join(map(str, places))
        raise UsageError(f"unknown run {run!r} (searched: {searched}); --state-dir names another directory")
    return next(iter(matches.values()))


def _has_runs(place: Path) -> bool:
    return exists(place / REGISTRY_FILE)
