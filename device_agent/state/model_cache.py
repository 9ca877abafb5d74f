"""The last global model that this device came to, as a file: who holds a version needs only the steps to the next one.

It holds public tensors alone, as they came from the coordinator or follow from what came: no patch, no residual, nothing of
this device. It is a convenience: lost or damaged, the whole model is downloaded, and it is replaced by the next model that
is come to. The training process writes it; the agent reads no more than which version it is, and deletes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from fedpatch.shared.app.checksummed_file import content_start, read_header, seal, unseal
from fedpatch.shared.app.files import make_directory, refusals_of, remove_unfinished, write_atomic
from fedpatch.shared.errors import StateError

DIRECTORY = "held"
_LINE = b"fedpatch global model 1\n"
_MAX_HEADER_BYTES = 1024
_FIELDS = {"version": str, "schema": str, "encoding": str, "raw_bytes": int}


@dataclass(frozen=True)
class Held:
    """What is held: the digest of the version's manifest, that of its tensors' schema, and how its blob is packed."""

    version: str
    schema: str
    encoding: str
    raw_bytes: int


class ModelCache:
    """At most one model, in `directory` (0700; made when there is something to hold)."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "global.model"

    def version(self) -> str:
        """Which version is held, "" for none. Only a look: what else is in the file is checked by `read`."""
        try:
            with self.path.open("rb") as file:
                start = file.read(content_start(_LINE) + _MAX_HEADER_BYTES)
            return _header(self.path, start[content_start(_LINE) :])[0].version if start.startswith(_LINE) else ""
        except (OSError, StateError):
            return ""

    def read(self) -> tuple[Held, bytes]:
        """What is held, and the blob. StateError where there is nothing, or what there is is damaged."""
        with refusals_of(self.path):
            data = self.path.read_bytes()
        content = unseal(self.path, _LINE, data, "a global model")
        held, length = _header(self.path, content[:_MAX_HEADER_BYTES])
        return held, bytes(content[length:])

    def tidy(self) -> None:
        """Deletes what a writer that was killed left half done; for the only writer to call. StateError."""
        with refusals_of(self.path):
            remove_unfinished(self.path.parent)

    def write(self, held: Held, blob: bytes) -> None:
        """From now on this is held, and what was before is gone. StateError where the disk refuses: then as before."""
        with refusals_of(self.path):
            make_directory(self.path.parent)
            write_atomic(self.path, seal(_LINE, msgpack.packb(asdict(held)) + blob))

    def forget(self) -> None:
        """Nothing is held any more. StateError where the disk refuses."""
        with refusals_of(self.path):
            self.path.unlink(missing_ok=True)


def _header(path: Path, start: bytes | memoryview) -> tuple[Held, int]:
    """What is at the start of a content, and how many bytes that takes."""
    fields, length = read_header(path, start, _FIELDS)
    return Held(**fields), length
