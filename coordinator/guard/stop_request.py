"""The request to stop a run after its open round: a file in the directory of the run, which the coordinator polls."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import is_locked_here, refuse_run_of_hub
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import UsageError

STOP_FILE = "stop-after-round"


class StopRequest:
    """The request of a run.

    Args:
        directory: Directory of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / STOP_FILE
        self._noted = False

    def poll(self) -> bool:
        """Return whether the request has arrived since the last call."""
        noted, self._noted = self._noted, self._noted or self._file.exists()
        return self._noted and not noted


def forget_stop(directory: Path) -> None:
    """Delete an earlier request to stop a run. The coordinator calls this after it has locked the fleet.

    Args:
        directory: Directory of the run.
    """
    with suppress(OSError):
        (directory / STOP_FILE).unlink(missing_ok=True)


def request_stop(state_dir: Path, run: str) -> str:
    """Ask the coordinator of a run to stop after its open round.

    Args:
        run: Id of the run, its beginning, or "last".

    Returns:
        The result in words.

    Raises:
        UsageError: There is no such run, or no coordinator works on it in this directory.
        StateError: The request cannot be written.
    """
    with Registry(state_dir / REGISTRY_FILE, readonly=True) as registry:
        info = registry.run(run)
    if info.status != "running":
        raise UsageError(f"run {info.id} is not at work ({info.status}), so there is nothing to stop")
    refuse_run_of_hub(info, state_dir)
    # Beside the lock of another user, writing the request raises the error with its remedy.
    if not is_locked_here(state_dir, str(info.settings.get("fleet")), unreadable=True):
        raise UsageError(
            f"run {info.id}: no coordinator is at work in {state_dir}, so there is nothing to stop; if it was killed, "
            f"`fedpatch resume {info.id}` continues the run; if it has another state directory, name that one (--state-dir)"
        )
    path = state_dir / "runs" / info.id / STOP_FILE
    with refusals_of(path):
        write_atomic(path, b"")
    return f"run {info.id} stops after its open round; `fedpatch resume {info.id}` goes on with it"
