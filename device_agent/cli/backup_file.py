"""A device's backup: one encrypted file with all that a new card needs to be the same device.

The file has the settings, patches, personal models, identity and history, the accounts of the allowance and of privacy, the
record of offered bases and the list of revoked certificates. Bases and lists since the backup are unknown to a restored device.

Not in it: status.json (the starts of the old card would hide a twin of this device), and updates, secrets and parts of models
of rounds that are over.

    line MAGIC, 16 bytes of salt, 12 bytes of nonce, ChaCha20-Poly1305 of a tar archive; the key is scrypt of the passphrase
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from fedpatch.device_agent.models.store import MODELS_DIRECTORY
from fedpatch.device_agent.policy.privacy_budget import RESTORED_NAME
from fedpatch.device_agent.policy.usage import USAGE_NAME
from fedpatch.device_agent.state.history import HISTORY_NAME
from fedpatch.device_agent.state.leader_epoch import LEADER_EPOCH_FILE
from fedpatch.device_agent.state.offered_bases import OFFERED_BASES_FILE
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME
from fedpatch.device_agent.state.revocation_file import REVOCATIONS_FILE
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.shared.app.files import refusals_of, remedy_to_read
from fedpatch.shared.config.toml_edit import parse_toml
from fedpatch.shared.errors import DataError, StateError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

MAGIC = b"fedpatch device backup 1\n"
SETTINGS = "agent.toml"
"""Name of the settings file within the archive."""
MAX_BYTES = 4 * 2**30

IDENTITY = "identity"
KEPT = (
    PATCHES,
    MODELS_DIRECTORY,
    IDENTITY,
    ACCOUNT_NAME,
    RESTORED_NAME,
    USAGE_NAME,
    LEADER_EPOCH_FILE,
    HISTORY_NAME,
    OFFERED_BASES_FILE,
    REVOCATIONS_FILE,
)
_SALT, _NONCE = 16, 12
UNKNOWN_DAY, DAY_S = date(1970, 1, 1), 86_400
_PAUSES_S = (0.1, 0.4, 1.0, 2.0)


def seal_backup(state_dir: Path, settings: bytes, passphrase: str, day: date, *, salt: bytes, nonce: bytes) -> bytes:
    """Return the backup of a state directory as it was at one moment. The agent may run.

    Args:
        settings: Content of its settings file.
        day: The local day.
        salt: 16 random bytes.
        nonce: 12 random bytes.

    Raises:
        StateError: A file cannot be read, or the agent wrote during each attempt.
        UsageError: `cryptography` is not installed, or the passphrase is empty.
    """
    cipher = _cipher(passphrase, salt)
    with refusals_of(state_dir):
        archive = _archive_of_one_moment(state_dir, settings, day)
    return MAGIC + salt + nonce + cipher.encrypt(nonce, archive, MAGIC)


def require_backup_or_none(path: Path) -> None:
    """Raise UsageError if there is a file that is no backup: `backup` would replace it, and it may be the settings file."""
    with refusals_of(path), suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise UsageError(f"{path}: is no backup of a device, and stays; name another file to write")


def open_backup(data: bytes, passphrase: str, where: str) -> bytes:
    """Return the archive in a backup.

    Raises:
        DataError: It is no backup, is damaged, or has another passphrase.
        UsageError: As `seal_backup`.
    """
    from cryptography.exceptions import InvalidTag

    head = len(MAGIC)
    if not data.startswith(MAGIC) or len(data) < head + _SALT + _NONCE:
        raise DataError(f"{where}: is no backup of a device; name a file that `fedpatch-agent backup` wrote")
    salt, nonce = data[head : head + _SALT], data[head + _SALT : head + _SALT + _NONCE]
    try:
        return _cipher(passphrase, salt).decrypt(nonce, data[head + _SALT + _NONCE :], MAGIC)
    except InvalidTag:
        raise DataError(f"{where}: cannot be opened: the passphrase is another one, or the file is damaged") from None


def text_in(settings: bytes, name: str) -> str:
    """Return a setting in a settings file; "" where it has none."""
    try:
        return str(parse_toml(settings.decode("utf-8-sig")).get(name, ""))
    except (ValueError, RecursionError):
        return ""


def settings_in(archive: bytes) -> bytes:
    """Return the settings file in a backup, which is its first file; b"" where it has none."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        first = tar.next()
        source = tar.extractfile(first) if first is not None and first.name == SETTINGS and first.isreg() else None
        return b"" if source is None else source.read()


def _archive_of_one_moment(state_dir: Path, settings: bytes, day: date) -> bytes:
    """Return the compressed archive of all files, read again if the agent replaced one meanwhile; StateError if it always did.

    A publication moves a model and its link, and a new patch moves the one before it: parts of both states are neither.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            before = _versions(state_dir)
            archive = _archive(state_dir, before, settings, day)
            if _versions(state_dir) == before:
                return gzip.compress(archive)  # after the moment, since a Pi takes seconds for it
        except FileNotFoundError:
            pass
        if pause_s is not None:
            time.sleep(pause_s)
    attempts = len(_PAUSES_S) + 1
    raise StateError(
        f"{state_dir}: the agent wrote here during each of {attempts} attempts to read it; try again later"
    )


def _archive(state_dir: Path, files: Iterable[Path], settings: bytes, day: date) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, SETTINGS, settings, day=day)
        for path in files:
            name = path.relative_to(state_dir).as_posix()
            if path.is_symlink():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(link)
            else:
                _add(tar, name, path.read_bytes(), path.stat().st_mode & 0o777)
    return archive.getvalue()


def _versions(state_dir: Path) -> dict[Path, tuple[int, int, int]]:
    """Return all files of the backup in order, each with inode, time of change and size. OSError if one cannot be read."""
    return {path: (about.st_ino, about.st_mtime_ns, about.st_size) for path, about in _files(state_dir)}


def _files(state_dir: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Return all files of the backup by name, without hidden ones: locks, and parts of writes and of models."""
    for name in KEPT:
        place = state_dir / name
        if place.is_file():
            yield place, place.lstat()
        for folder, folders, files in os.walk(place, onerror=_raise):
            links = [one for one in folders if (Path(folder) / one).is_symlink()]
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            for file in sorted({*files, *links}):
                if not file.startswith("."):
                    path = Path(folder) / file
                    yield path, path.lstat()


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o600, day: date = UNKNOWN_DAY) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = len(content), mode, (day - UNKNOWN_DAY).days * DAY_S
    tar.addfile(about, io.BytesIO(content))


def _cipher(passphrase: str, salt: bytes) -> ChaCha20Poly1305:
    """Return the cipher of a passphrase. UsageError where `cryptography` is not installed, or the passphrase is empty."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ImportError:
        remedy = "pip install 'fedpatch[secure]'"
        raise UsageError(f"a backup is encrypted with cryptography, which is not installed; {remedy}") from None
    if not passphrase:
        raise UsageError("the passphrase is empty; write one into the file of --passphrase-file")
    key = hashlib.scrypt(passphrase.encode(), salt=salt, dklen=32, n=2**15, r=8, p=1, maxmem=64 * 2**20)
    return ChaCha20Poly1305(key)


def read_backup(path: Path) -> bytes:
    """Return the bytes of a backup's file; UsageError if it cannot be read, StateError if it is too large."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise StateError(f"{path}: has more than {MAX_BYTES} bytes, which no backup has; name another file")
        return path.read_bytes()
    except OSError as error:
        remedy = remedy_to_read(error, path, "name a file that `fedpatch-agent backup` wrote")
        raise UsageError(f"{path}: {error.strerror or error}; {remedy}") from None
