"""Blob stores: their protocol, the store in files of a directory, and the choice of a store by URL."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from fedpatch.coordinator.blobs.epoch_folder import epoch_folder
from fedpatch.shared.app.files import (
    UNFINISHED,
    file_head,
    make_directory,
    open_atomic,
    read_state,
    reading,
    refusals_of,
    remove_unfinished,
    sync_directory,
    unseal,
)
from fedpatch.shared.app.store_waits import StoreWaits
from fedpatch.shared.errors import StateError, UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_REMEDY = "let this user write there, or name another directory"
_FORMS = "write s3://BUCKET/PREFIX or file:///DIRECTORY"


class BlobReader(Protocol):
    """Reads the blobs of one run; errors as of `BlobStore`."""

    def where(self, key: str = "") -> str:
        """Return the place of a key, or of the run, for messages."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return a blob; None if there is none."""
        ...


class BlobStore(BlobReader, Protocol):
    """The blobs of one run; each method may be called in any thread.

    Each method raises StateError if a disk refuses, and StoreUnavailable if an object store does. A read that fails is
    repeated; then the methods that read raise StateUnreadable, and nothing is known about the blob.

    Attributes:
        concurrency: Number of requests that are worth making in parallel.
    """

    concurrency: int

    def check(self) -> None:
        """Raise StoreUnavailable or StateError if the store cannot be reached or written."""
        ...

    def put(self, key: str, *parts: bytes, durable: bool = True, durable_name: bool = True) -> None:
        """Store the joined `parts` in one step: a reader finds the old blob or the new one, and never a part.

        Args:
            durable: Whether the blob survives a power cut of the store once `put` has returned.
            durable_name: Whether its name survives too; if not, the caller calls `sync`.
        """
        ...

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        ...

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names directly in `folder`, folders with a slash at the end; none if `folder` is absent."""
        ...

    def delete(self, *keys: str) -> None:
        """Delete blobs and, by a key that ends with `/`, whole folders; absent ones are no error."""
        ...


def read_sealed(blobs: BlobReader, key: str, line: bytes, kind: str) -> memoryview | None:
    """Return the content of a blob with a checksum; None if there is none.

    A blob whose checksum does not fit is read again: a store or a line may have delivered it wrongly. It is damaged if it is
    read in the same way twice.

    Args:
        line: Its format line.
        kind: Noun for the blob with its article, for messages.

    Raises:
        StateUnreadable, StoreUnavailable: It cannot be read now.
        StateError: It is damaged.
    """
    data = blobs.get(key)
    for last in (False, False, True):
        if data is None:
            return None
        try:
            return unseal(blobs.where(key), line, data, kind)
        except StateError:
            again = None if last else blobs.get(key)
            if last or again == data:
                raise
            data = again
    raise AssertionError


def require_sealed(blobs: BlobReader, key: str, line: bytes, kind: str) -> memoryview:
    """Return the content of a blob with a checksum, which must exist; raises as `read_sealed`.

    Args:
        line: Its format line.
        kind: Noun for the blob with its article, for messages.
    """
    content = read_sealed(blobs, key, line, kind)
    if content is None:
        raise StateError(f"{blobs.where(key)}: is not there; restore it from a backup")
    return content


def write_sealed(
    blobs: BlobStore, key: str, line: bytes, content: bytes, digest: bytes = b"", *, durable_name: bool = True
) -> None:
    """Write a blob with a checksum.

    Args:
        line: Its format line.
        digest: SHA-256 of the content, if it is known.
        durable_name: Whether the name is durable too when the function returns.
    """
    blobs.put(key, file_head(line, content, digest), content, durable_name=durable_name)


R = TypeVar("R", bound=BlobReader)
Place = Path | BlobStore
"""A run's blob store, or its directory."""


def blobs_at(place: Path | R) -> FileBlobs | R:
    """Return the store of a place."""
    return FileBlobs(place) if isinstance(place, Path) else place


def url_problem(url: str) -> str | None:
    """Return the fault of a store's URL with its remedy; None if it can be used.

    Example:
        >>> url_problem("s3://models/factory")
        >>> url_problem("s3://")
        "'s3://' names no bucket; write s3://BUCKET/PREFIX or file:///DIRECTORY"
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"{url!r} is no URL ({error}); {_FORMS}"
    if "@" in parts.netloc or parts.query or parts.fragment:  # not shown: it may hold a secret
        return f"it has more than a place; {_FORMS}, and give credentials by the AWS_* environment"
    if parts.scheme == "file":
        return None if not parts.netloc and parts.path.startswith("/") else f"{url!r} is not absolute; {_FORMS}"
    if parts.scheme != "s3":
        return f"{url!r} has an unknown scheme; {_FORMS}"
    if not parts.netloc:
        return f"{url!r} names no bucket; {_FORMS}"
    if not _BUCKET.fullmatch(parts.netloc):
        return f"{parts.netloc!r} is no bucket's name; {_FORMS}"
    return None


def run_blobs(settings: Mapping[str, Any], directory: Path, epoch: int) -> BlobStore:
    """Return the blob store that has the present state of a run.

    Args:
        settings: Stored settings of the run.
        directory: Directory of the run, which has the run's name.
        epoch: Epoch of the run in the registry. If it is the epoch of a leader with standbys, the state is in the folder of
            that leader.

    Raises:
        UsageError, StoreUnavailable: As `open_blobs`.
    """
    url = settings.get("blobs")
    if url is not None and (led := open_blobs(url, directory, epoch)).list():
        return led
    return open_blobs(url, directory)


def open_blobs(
    url: str | None,
    directory: Path,
    leader_epoch: int | None = None,
    ending: StoreWaits | None = None,
    *,
    modes: tuple[int, int] = (0o600, 0o700),
    retry_s: float = 90.0,
    setting: str = "blobs",
) -> BlobStore:
    """Return the blob store of a run, or of the models that devices fetch by URL.

    Args:
        url: The setting; None: the run's directory.
        directory: Directory of the run, which has the run's name.
        leader_epoch: Epoch of a leader with standbys: its blobs are in a folder of its own, where a former leader does not
            write. None without standbys.
        ending: The requests that wait; set when the process shall end: they are then abandoned after a moment.
        modes: Permissions of files and of directories.
        retry_s: Seconds for which a request to an object store is repeated.
        setting: Name of the setting, for messages.

    Raises:
        UsageError: The URL cannot be used, or the extra is not installed.
    """
    if url is None:
        return FileBlobs(directory, modes)
    if problem := url_problem(url):
        raise UsageError(f"{setting}: {problem}")
    parts = urlsplit(url)
    folder = (directory.name, *(() if leader_epoch is None else (epoch_folder(leader_epoch),)))
    if parts.scheme == "file":
        return _NamedDirectory(Path(parts.path, *folder), modes)
    try:
        from fedpatch.coordinator.blobs.object_blobs import ObjectBlobs
    except ImportError as error:
        raise UsageError(f"{setting}: {url} needs the package {error.name}; pip install 'fedpatch[s3]'") from error
    prefix = "/".join(filter(None, (*parts.path.split("/"), *folder)))
    return ObjectBlobs(parts.netloc, prefix, retry_s, ending=ending)


class FileBlobs:
    """The blob store of a run in a directory, which need not exist.

    Each file is replaced by one rename, after its bytes are on the disk.

    Args:
        directory: The directory.
        modes: Permissions of files, and of directories less the umask.
    """

    concurrency = 1

    def __init__(self, directory: Path, modes: tuple[int, int] = (0o600, 0o700)) -> None:
        self._directory = directory
        self._file_mode, self._directory_mode = modes

    def where(self, key: str = "") -> str:
        """Return the path of a file, or of the directory."""
        return str(self._directory / key)

    def check(self) -> None:
        """Do nothing: the state directory is checked elsewhere."""

    def put(self, key: str, *parts: bytes, durable: bool = True, durable_name: bool = True) -> None:
        """Replace a file, or make it."""
        path = self._directory / key
        with refusals_of(path, _REMEDY):
            make_directory(path.parent, self._directory_mode)
            if path.is_dir():  # a repaired file system may have a directory here; a rename cannot replace it by a file
                path.rename(path.with_name(f"{path.name}.damaged"))
            if durable and durable_name:
                remove_unfinished(path.parent)  # files of a killed process; only the run's process writes here
            with open_atomic(path, mode=self._file_mode, durable=durable, durable_name=durable_name) as file:
                for part in parts:
                    file.write(part)

    def sync(self, folder: str) -> None:
        """Flush a directory, so that one wait for the disk covers many names."""
        path = self._directory / folder
        with refusals_of(path, _REMEDY):
            sync_directory(path)

    def get(self, key: str) -> bytes | None:
        """Return the content of a file."""
        try:
            return read_state(self._directory / key)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a directory, without unfinished files."""
        path = self._directory / folder

        def names() -> list[str]:
            with os.scandir(path) as found:
                return [one.name + "/" * one.is_dir() for one in found]

        try:
            return sorted(name for name in reading(path, names) if not name.endswith(UNFINISHED))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, *keys: str) -> None:
        """Delete files and whole directories. A directory in the place of a file stays."""
        for key in keys:
            path = self._directory / key
            with refusals_of(path, _REMEDY):
                if not key.endswith("/"):
                    if not path.is_dir():
                        path.unlink(missing_ok=True)
                elif path.is_dir():
                    shutil.rmtree(path)


class _NamedDirectory(FileBlobs):
    """The blob store in a directory that a setting names."""

    def check(self) -> None:
        """Write and delete a file, in the nearest directory that exists; raise StateError if that fails."""
        nearest = next(one for one in (self._directory, *self._directory.parents) if one.exists())
        try:
            with NamedTemporaryFile(prefix=".check-", dir=nearest) as file:
                file.write(b"x")
        except OSError as error:
            error.filename = str(nearest)
            with refusals_of(nearest, _REMEDY):
                raise
