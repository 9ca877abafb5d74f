"""The presence of an agent on its own device: a lock on its directory, its status file, and the reading of both."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, ModelCache
from fedpatch.device_agent.state.patch_store import PatchEntry, list_patches
from fedpatch.device_agent.state.storage_check import PATCHES, SPOOL
from fedpatch.device_agent.state.update_spool import NOTE
from fedpatch.shared.app.files import (
    check_state_directory,
    make_directory,
    refusals_of,
    refuse_broken_link,
    remove_unfinished,
    write_atomic,
)
from fedpatch.shared.app.locks import FileLock, is_held
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.typed_values import learn_types

LOCK_NAME = "agent.lock"
STATUS_NAME = "status.json"
STARTING = "starting"
"""The state of an agent whose task is being loaded."""
# A broker that restores an old copy of its retained messages may have the state of one of the last starts.
MAX_BOOTS = 16


def host_as_device_id() -> str:
    """Return the host's name in the form that a topic allows: `[a-z0-9][a-z0-9_-]{0,31}`."""
    name = re.sub(r"[^a-z0-9_-]+", "-", socket.gethostname().lower()).strip("-_")
    return name[:32] or "device"


def lock_state_dir(directory: Path) -> FileLock:
    """Make the state directory if it is missing, lock it, and delete unfinished files of a killed agent.

    Raises:
        UsageError: Another agent uses the directory, or others may write there.
        StateError: The disk refused.
    """
    with refusals_of(directory):
        make_directory(directory)
        check_state_directory(directory)
        lock = FileLock(
            directory / LOCK_NAME,
            f"{directory}: another agent is running with this state directory; stop it, or give this one its own "
            "with --state-dir",
        )
        remove_unfinished(directory)
    return lock


def status_entry(directory: Path, name: str) -> Any:
    """Return an entry of the status of the last agent that wrote here; None if it or the file is missing or damaged."""
    try:
        return json.loads((directory / STATUS_NAME).read_bytes())[name]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def former_boots(directory: Path) -> tuple[str, ...]:
    """Return the nonces of earlier starts in this state directory, the latest last; none if the file is missing or damaged."""
    boots = status_entry(directory, "boots")
    return tuple(boot for boot in boots if isinstance(boot, str)) if isinstance(boots, list) else ()


def status_pid(directory: Path) -> int | None:
    """Return the process id in the status of the last agent that wrote here; None if the file is missing or damaged."""
    pid = status_entry(directory, "pid")
    return pid if isinstance(pid, int) else None


class StatusFile:
    """`status.json` for `fedpatch-agent status`, written only after a change.

    It is replaced in one rename. Only the first write of a process is flushed, which has the nonce of its start: each flush
    wears a memory card, and after a power cut no agent runs.
    """

    def __init__(self, directory: Path, fixed: Mapping[str, Any]) -> None:
        self._path = directory / STATUS_NAME
        self._fixed = {"pid": os.getpid(), **fixed}
        self._last: dict[str, Any] = {}

    def write(self, changing: Mapping[str, Any]) -> None:
        """Write the status with the wall clock's time of the change. A full disk affects only the status, not the job."""
        if dict(changing) == self._last:
            return
        is_first, self._last = not self._last, dict(changing)
        status = {**self._fixed, **changing, "since": time.time()}
        try:
            write_atomic(self._path, json.dumps(status, indent=1).encode(), durable=is_first)
        except OSError:
            self._last = {}


class _Task(TypedDict):
    task: str
    num_examples: int


class _Private(TypedDict):
    words: str
    source: str
    below_default: bool
    keeps_nothing: bool


class _Run(TypedDict):
    run: str
    rounds: int


class _Privacy(TypedDict):
    max_epsilon: float | None
    required: bool
    delta: float
    epsilon: float | None
    rounds: int | None
    runs: list[_Run]
    problem: str


class _Spent(TypedDict):
    rounds: int
    traffic_bytes: int
    training_s: float


class _Settings(TypedDict):
    file: str
    values: dict[str, Any]
    overridden: list[str]


class _Optional(TypedDict, total=False):
    pid: int
    broker: str
    state: str
    connected: bool
    run: str | None
    round: int | None
    since: Annotated[float, Meta(ge=0.0, le=1e12)]
    paused: bool
    admission: str
    declines: str
    unwilling: list[str]
    refused: str
    terms: list[str]
    settings: _Settings
    spent: _Spent
    problem: str
    last_outcome: str | None
    tasks: list[_Task]
    private: _Private
    privacy: _Privacy
    network_open: str


class _Status(_Optional):
    """The keys of status.json that are read. `private`, `privacy` and `settings` may also be {}."""

    device_id: str
    fleet: str


learn_types(_Status)
_MAY_BE_EMPTY = ("private", "privacy", "settings")


@dataclass(frozen=True)
class AgentStatus:
    """Status of an agent, for people and programs.

    Attributes:
        status: Content of status.json (StatusFile), empty where the agent has written none yet.
        running: Whether the agent runs, by the kernel: a killed agent could not write that it stopped.
        update_waits: Whether an update is on the disk that the coordinator has not committed.
        held_version: Digest of the global model that is held between rounds, "" for none.
    """

    running: bool
    status: Mapping[str, Any]
    update_waits: bool
    patches: tuple[PatchEntry, ...]
    held_version: str


def read_standing(state_dir: Path) -> AgentStatus:
    """Read the status. UsageError if no agent ever ran, StateError if its files cannot be read."""
    running = _is_running(state_dir)
    with refusals_of(state_dir):
        return AgentStatus(
            running=running,
            status=_read_status(state_dir / STATUS_NAME),
            update_waits=(state_dir / SPOOL / NOTE).exists(),
            patches=tuple(list_patches(state_dir / PATCHES)),
            held_version=ModelCache(state_dir / HELD_DIRECTORY).version(),
        )


def read_patches(state_dir: Path) -> Sequence[PatchEntry]:
    """Read the patches alone, also beside a damaged status.json. Errors as of `read_standing`."""
    _is_running(state_dir)
    return list_patches(state_dir / PATCHES)


def _is_running(state_dir: Path) -> bool:
    lock = state_dir / LOCK_NAME
    with refusals_of(lock):
        refuse_broken_link(state_dir)
        try:
            return is_held(lock)
        except FileNotFoundError:
            raise UsageError(f"no agent has run in {state_dir}; say where its state is with --state-dir") from None


def _read_status(path: Path) -> Mapping[str, Any]:
    try:
        data = path.read_bytes().strip(b"\0")
        status = json.loads(data) if data else {}
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: is damaged ({error}); restart the agent") from error
    if status == {}:
        return {}  # lost in a power cut, since it is not flushed
    try:
        known = {key: value for key, value in status.items() if value != {} or key not in _MAY_BE_EMPTY}
        msgspec.convert(known, _Status)
    except (AttributeError, msgspec.ValidationError) as error:
        raise StateError(f"{path}: is not what an agent wrote ({error}); restart the agent") from None
    return dict(status)
