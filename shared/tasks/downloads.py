"""Data files with known checksums: found in the data folder or downloaded into it, and verified at every use."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.shared.errors import DataError

log = logging.getLogger("fedpatch.data")

TIMEOUT_S = 30.0
RETRIES = 3
CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class DataFile:
    """A file below the data folder, known by its checksum.

    Args:
        folder: Folder of the file, below the data folder.
        name: Name of the file.
        sha256: SHA-256 of its content, hexadecimal.
        urls: Addresses from which it can be downloaded, in order of trial; empty: it must be there.

    Example:
        >>> from pathlib import Path
        >>> from fedpatch import DataFile
        >>> DataFile("vit", "base.npz", "9f86d0", ("https://example.org/base.npz",)).path(Path("/srv/data")).as_posix()
        '/srv/data/vit/base.npz'
    """

    folder: str
    name: str
    sha256: str
    urls: tuple[str, ...] = ()

    def path(self, root: Path) -> Path:
        """Return the path of the file below the data folder `root`."""
        return root / self.folder / self.name


def fetch(file: DataFile, root: Path, *, retries: int = RETRIES) -> Path:
    """Return the path of a verified file; download it first if it is absent.

    An interrupted download starts again from the beginning. Only a complete, verified file gets its name.

    Args:
        root: The data folder.
        retries: Attempts for each URL.

    Returns:
        Path of the file.

    Raises:
        DataError: The file is damaged or cannot be downloaded.
    """
    path = file.path(root)
    try:
        if not path.exists():
            _download(file, path, retries)
        verify(file, path)
    except OSError as error:
        raise DataError(f"{file.folder}: {path} cannot be used: {error}") from error
    return path


def fetch_absent(files: Iterable[DataFile], root: Path) -> None:
    """Download the files that are not in the data folder `root`, and check the others first. DataError as of `fetch`."""
    wanted = sorted(files, key=lambda file: not file.path(root).exists())
    if wanted and not wanted[-1].path(root).exists():
        for file in wanted:
            fetch(file, root)


def verify(file: DataFile, path: Path) -> None:
    """Raise DataError unless the file at `path` has the SHA-256 of `file`."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.sha256:
        remedy = "delete it to fetch it again" if file.urls else "replace it"
        raise DataError(f"{file.folder}: {file.name} has sha256 {digest}, expected {file.sha256}; {remedy} ({path})")


def _download(file: DataFile, path: Path, retries: int) -> None:
    try:
        import pooch
        from requests import RequestException
    except ImportError as error:
        raise _unavailable(file, path, f"downloading needs pooch ({error}): pip install pooch") from error
    try:
        socket.socket().close()
    except PermissionError as error:  # a refusal: another attempt gets the same
        raise _unavailable(file, path, error.strerror or str(error)) from error
    pooch.get_logger().setLevel(logging.ERROR)  # it would write to stderr on its own; this module logs errors
    problems = []
    for url in file.urls:
        log.info("%s: fetching %s from %s", file.folder, file.name, url)
        store = pooch.create(
            path.parent,
            base_url="",
            registry={file.name: f"sha256:{file.sha256}"},
            urls={file.name: url},
            retry_if_failed=retries,
        )
        progress: Any = _Progress(f"{file.folder}: {file.name}")
        over_http = pooch.HTTPDownloader(progressbar=progress, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S)
        try:
            store.fetch(file.name, downloader=over_http)
            return
        except RequestException as error:
            problems.append(f"{url}: {type(error).__name__}: {error}")
        except ValueError:  # pooch raises it for a wrong checksum; its message names a temporary file
            problems.append(f"{url}: what came has another sha256 than {file.sha256}")
        log.warning("%s: %s", file.folder, problems[-1])
    raise _unavailable(file, path, "; ".join(problems) or "it has no public address")


def _unavailable(file: DataFile, path: Path, reason: str) -> DataError:
    return DataError(
        f"{file.folder}: {file.name} could not be downloaded ({reason}); bring it here by other means as {path}, "
        f"or set FEDPATCH_DATA to a folder that holds {file.folder}/{file.name}"
    )


class _Progress:
    """Progress bar for pooch: a log line at each tenth of the file."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.total = 0

    @property
    def total(self) -> int:
        """Size of the file in bytes, 0 where unknown; set at the beginning of every attempt."""
        return self._total

    @total.setter
    def total(self, size_bytes: int) -> None:
        self._total = size_bytes
        self._done = 0
        self._tenths = 0

    def update(self, size_bytes: int) -> None:
        """Count `size_bytes` more."""
        self._done += size_bytes
        tenths = min(10, 10 * self._done // self._total) if self._total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            log.info("%s: %d %% of %.1f MB", self.what, 10 * tenths, self._total / 1e6)

    def reset(self) -> None:
        """Called before the last update, which then counts the whole file."""
        self._done = 0

    def close(self) -> None:
        """Nothing to close."""
