"""Root's commands that write into a state directory act as its owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.errors import StateError


@contextmanager
def acting_as(owner: os.stat_result) -> Iterator[None]:
    """Write as the owner of a state directory if root acts: the owner could replace any file there by a link.

    Args:
        owner: The directory.

    Raises:
        StateError: Root may not act as another user.
    """
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    try:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    except PermissionError as error:
        raise StateError(
            f"root has no right to act as user {owner.st_uid}, the owner of the state directory (CAP_SETUID, CAP_SETGID); "
            "run this command as that user"
        ) from error
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@contextmanager
def acting_as_owner_of(state_dir: Path) -> Iterator[None]:
    """Write as the owner of an existing state directory if root acts: the agent could not replace files of root there.

    Raises:
        StateError: As `acting_as`, or the directory cannot be looked at.
    """
    with refusals_of(state_dir):
        owner = state_dir.stat()
    with acting_as(owner):
        yield
