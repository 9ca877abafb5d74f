"""The global model of the last round as a file: with it, a device downloads only the deltas to the next version.

It holds public tensors only: no patch. If it is lost or damaged, the whole model is downloaded, or the deltas
from an older one. The training process keeps it in memory and writes it when it ends (`BufferedModelCache`); the agent only
reads its version, and deletes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from fedpatch.shared.app.files import (
    content_start,
    make_directory,
    read_header,
    refusals_of,
    remove_unfinished,
    seal,
    unseal,
    write_atomic,
)
from fedpatch.shared.errors import StateError

HELD_DIRECTORY = "held"
_LINE = b"fedpatch global model 1\n"
_MAX_HEADER_BYTES = 1024
_FIELDS = {"version": str, "schema": str, "encoding": str, "raw_bytes": int}


@dataclass(frozen=True)
class Held:
    """Description of the held model: digest of the version's manifest, digest of the tensors' schema, and its packing."""

    version: str
    schema: str
    encoding: str
    raw_bytes: int


class ModelCache:
    """At most one model, in `directory` (0700; made with the first model)."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "global.model"

    def version(self) -> str:
        """Return the digest of the held version; "" for none. Only `read` checks the rest of the file."""
        try:
            with self.path.open("rb") as file:
                start = file.read(content_start(_LINE) + _MAX_HEADER_BYTES)
            return _header(self.path, start[content_start(_LINE) :])[0].version if start.startswith(_LINE) else ""
        except (OSError, StateError):
            return ""

    def read(self) -> tuple[Held, bytes]:
        """Return the description and the blob; StateError if there is none, or it is damaged."""
        with refusals_of(self.path):
            data = self.path.read_bytes()
        content = unseal(self.path, _LINE, data, "a global model")
        held, length = _header(self.path, content[:_MAX_HEADER_BYTES])
        return held, bytes(content[length:])

    def tidy(self) -> None:
        """Delete the unfinished file of a killed writer; called by the only writer. Raises StateError."""
        with refusals_of(self.path):
            remove_unfinished(self.path.parent)

    def write(self, held: Held, blob: bytes) -> None:
        """Replace the held model; StateError if the disk refuses, and then the old model stays."""
        with refusals_of(self.path):
            make_directory(self.path.parent)
            write_atomic(self.path, seal(_LINE, msgpack.packb(asdict(held)) + blob))

    def forget(self) -> None:
        """Delete the held model; StateError if the disk refuses."""
        with refusals_of(self.path):
            self.path.unlink(missing_ok=True)


class BufferedModelCache(ModelCache):
    """A model cache that keeps the model in memory until `flush`: a card is written once in many rounds.

    Args:
        directory: As for ModelCache.
        announce: Called with the version of the model that is in memory from now on.
    """

    def __init__(self, directory: Path, announce: Callable[[str], None] = lambda version: None) -> None:
        super().__init__(directory)
        self._announce = announce
        self._buffered: tuple[Held, bytes] | None = None

    def version(self) -> str:
        """Return the digest of the held version, in memory or else on disk; "" for none."""
        buffered = self._buffered
        return buffered[0].version if buffered else super().version()

    def read(self) -> tuple[Held, bytes]:
        """Return description and blob, from memory or else from disk; StateError as ModelCache.read."""
        return self._buffered or super().read()

    def write(self, held: Held, blob: bytes) -> None:
        """Replace the model in memory."""
        self._buffered = held, blob
        self._announce(held.version)

    def flush(self) -> None:
        """Write the model that is in memory to disk, unless it is there; StateError if the disk refuses."""
        if self._buffered is not None and self._buffered[0].version != super().version():
            super().write(*self._buffered)


def _header(path: Path, start: bytes | memoryview) -> tuple[Held, int]:
    """Return the description at the start of a content, and its length in bytes."""
    fields, length = read_header(path, start, _FIELDS)
    return Held(**fields), length
