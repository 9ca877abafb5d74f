"""The restoration of a device's backup into an empty state directory, and the conditions under which it is refused.

The accounts of an old state miss the rounds since then. So a restored device has spent the allowance of its day, and has spent
its privacy until the owner says otherwise: no allowance and no budget is spent twice.
"""

from __future__ import annotations

import io
import os
import tarfile
from datetime import date, timedelta
from pathlib import Path, PurePosixPath

import msgspec

from fedpatch.device_agent.cli.backup_file import DAY_S, IDENTITY, KEPT, SETTINGS, UNKNOWN_DAY
from fedpatch.device_agent.models.store import MODELS_DIRECTORY
from fedpatch.device_agent.policy.privacy_budget import RESTORED_NAME
from fedpatch.device_agent.policy.usage import ALL_SPENT, USAGE_NAME, DailyBudget, DayUsage
from fedpatch.shared.app.files import make_directory, refusals_of, write_atomic
from fedpatch.shared.errors import DataError, UsageError


def restore_backup(archive: bytes, state_dir: Path, today: date) -> bytes:
    """Write the files of a backup into an empty state directory, and return the settings.

    The accounts are written before all else, so that an interruption leaves no state that could spend anything twice. An
    identity that is there stays: this card was enrolled after the backup, and the identity in it may be revoked since.

    Args:
        archive: As of `open_backup`.
        state_dir: State directory, which is made.
        today: The local day, whose allowance counts as spent.

    Raises:
        UsageError: The directory has patches or an account already, or `today` is before the day of the backup: the clock is
            wrong, and the day whose allowance counts as spent would be over as soon as it is set.
        StateError: The disk refused.
        DataError: The archive has a name that no backup has.
    """
    with refusals_of(state_dir):
        found = [name for name in KEPT if os.path.lexists(state_dir / name)]
        if others := [name for name in found if name != IDENTITY]:
            raise UsageError(
                f"{state_dir}: has a state already ({', '.join(others)}); end the agent, move these files away, and restore "
                "again"
            )
        _require_later(archive, today)
        make_directory(state_dir, 0o710)
        spent = DayUsage(today, DailyBudget(today, ALL_SPENT))
        write_atomic(state_dir / RESTORED_NAME, b"")
        write_atomic(state_dir / USAGE_NAME, msgspec.json.encode(spent))
        settings = b""
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for one in tar:
                if PurePosixPath(one.name).parts[:1] != (IDENTITY,) or IDENTITY not in found:
                    settings = _extract(tar, one, state_dir) or settings
    return settings


def _require_later(archive: bytes, today: date) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        first = tar.next()
    made = UNKNOWN_DAY if first is None else UNKNOWN_DAY + timedelta(days=int(first.mtime) // DAY_S)
    if today < made:
        raise UsageError(
            f"the clock shows {today}, and the backup is of {made}; set the clock, so that no allowance is spent twice"
        )


def _extract(tar: tarfile.TarFile, one: tarfile.TarInfo, state_dir: Path) -> bytes:
    """Write one file, and return the content of the settings; b"" for another file."""
    path = PurePosixPath(one.name)
    if path.is_absolute() or ".." in path.parts or ".." in PurePosixPath(one.linkname).parts or "/" in one.linkname:
        raise DataError(f"the backup has a file {one.name!r}, which no backup has")
    source = tar.extractfile(one) if one.isreg() else None
    content = b"" if source is None else source.read()
    if one.name == SETTINGS:
        return content
    if path.parts[0] not in KEPT:
        raise DataError(f"the backup has a file {one.name!r}, which no backup has")
    if one.name in (USAGE_NAME, RESTORED_NAME):
        return b""
    target = state_dir / path
    open_to_group = path.parts[0] == MODELS_DIRECTORY
    for folder in list(path.parents)[-2::-1]:  # parents that make_directory makes itself are open to all
        make_directory(state_dir / folder, 0o750 if open_to_group else 0o700)
    if one.issym():
        os.symlink(one.linkname, target)
    else:
        write_atomic(target, content, mode=one.mode & (0o640 if open_to_group else 0o600))
    return b""
