"""The protocol of a run's blob store, and the choice of a store by URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from fedpatch.coordinator.blobs.file_blobs import FileBlobs
from fedpatch.shared.errors import UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
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

    Each method raises StateError if a disk refuses, and StoreUnavailable if an object store does.

    Attributes:
        concurrency: Requests that are worth having under way at once.
    """

    concurrency: int

    def check(self) -> None:
        """Raise StoreUnavailable if the store cannot be reached or written."""
        ...

    def put(self, key: str, *parts: bytes, durable: bool = True, durable_name: bool = True) -> None:
        """Store the joined `parts` in one step: a reader finds the old blob or the new one, and never a part.

        Args:
            key: The key.
            parts: The content.
            durable: Whether the blob survives a power cut of the store when this returns.
            durable_name: Whether its name does too; without it the caller calls `sync`.
        """
        ...

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        ...

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names directly in `folder`, those of folders with a slash at the end; none if it is absent."""
        ...

    def delete(self, *keys: str) -> None:
        """Delete blobs and, by a key that ends with `/`, whole folders; absent ones are no error."""
        ...


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


def run_blobs(settings: Mapping[str, Any], directory: Path) -> BlobStore:
    """Return the blob store of a run by its stored settings; as `open_blobs`."""
    return open_blobs(settings.get("blobs"), directory)


def open_blobs(
    url: str | None,
    directory: Path,
    *,
    modes: tuple[int, int] = (0o600, 0o700),
    retry_s: float = 90.0,
    setting: str = "blobs",
) -> BlobStore:
    """Return the blob store of a run, or of the models that devices fetch by URL.

    Args:
        url: The setting; None: the run's directory.
        directory: Directory of the run, which has the run's name.
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
    if parts.scheme == "file":
        return FileBlobs(Path(parts.path) / directory.name, modes)
    try:
        from fedpatch.coordinator.blobs.object_blobs import ObjectBlobs
    except ImportError as error:
        raise UsageError(f"{setting}: {url} needs the package {error.name}; pip install 'fedpatch[s3]'") from error
    return ObjectBlobs(parts.netloc, "/".join(filter(None, (*parts.path.split("/"), directory.name))), retry_s)
