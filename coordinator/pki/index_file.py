"""The record of a CA as a file: read, written durably, and looked at again by a coordinator at work."""

from __future__ import annotations

from pathlib import Path

from coordinator.identity.index import Index, decode_index, encode_index
from shared.errors import StateError, UsageError
from shared.files import refusals_of, write_atomic

INDEX_NAME = "index.json"
MAX_INDEX_BYTES = 256 * 2**20


def read_index(directory: Path) -> Index | None:
    """The record in the CA directory, None where there is no CA; StateError where it is damaged or cannot be read."""
    path = directory / INDEX_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(
            f"{path}: {error.strerror or error}; run fedpatch as the user whom the CA belongs to"
        ) from error
    if len(data) > MAX_INDEX_BYTES:
        raise StateError(f"{path}: the record of a CA is larger than {MAX_INDEX_BYTES} bytes")
    return decode_index(data, path)


def must_read(directory: Path) -> Index:
    """The same; UsageError where there is no CA."""
    index = read_index(directory)
    if index is None:
        raise UsageError(f"{directory}: no CA there; make one with `fedpatch ca init`, or name it with --ca-dir")
    return index


def write_index(directory: Path, index: Index) -> None:
    """Puts it there; it outlasts a power cut once this returns."""
    with refusals_of(directory):
        write_atomic(directory / INDEX_NAME, encode_index(index))
