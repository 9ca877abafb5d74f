"""How an agent stands, read from its state directory by another process of the same device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_agent.held_model import DIRECTORY, HeldModel
from device_agent.patch_store import PatchEntry, list_patches
from device_agent.presence import LOCK_NAME, STATUS_NAME
from device_agent.spool import NOTE
from device_agent.storage import PATCHES, SPOOL
from shared.errors import StateError, UsageError
from shared.locks import is_held

_IDENTITY = ("device_id", "fleet")


@dataclass(frozen=True)
class Standing:
    """`status` is what the agent wrote last (see presence.StatusFile), empty where it has not written yet.

    `running` is asked of the kernel, for an agent that was killed could not write that it stopped. `update_waits` tells
    whether an update is on the disk that the coordinator has not committed. `held_version` is the global model that is held
    from one round to the next, by its digest; "" for none.
    """

    running: bool
    status: Mapping[str, Any]
    update_waits: bool
    patches: tuple[PatchEntry, ...]
    held_version: str


def read_standing(state_dir: Path) -> Standing:
    """Read only; UsageError where no agent ever ran, StateError where its files cannot be read."""
    lock = state_dir / LOCK_NAME
    try:
        running = is_held(lock)
        status = _read_status(state_dir / STATUS_NAME)
    except FileNotFoundError:
        raise UsageError(f"no agent has run in {state_dir}; say where its state is with --state-dir") from None
    except OSError as error:
        raise StateError(
            f"{error.filename or lock}: {error.strerror}; ask as the user that the agent runs as"
        ) from error
    return Standing(
        running=running,
        status=status,
        update_waits=(state_dir / SPOOL / NOTE).exists(),
        patches=tuple(list_patches(state_dir / PATCHES)),
        held_version=HeldModel(state_dir / DIRECTORY).version(),
    )


def _read_status(path: Path) -> Mapping[str, Any]:
    try:
        data = path.read_bytes().strip(b"\0")
        status = json.loads(data) if data else {}
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: is damaged ({error}); restart the agent") from error
    if status == {}:
        return {}  # a power cut took it: it is not flushed
    if not isinstance(status, dict) or not all(key in status for key in _IDENTITY):
        raise StateError(f"{path}: is not what an agent wrote; restart the agent")
    return status
