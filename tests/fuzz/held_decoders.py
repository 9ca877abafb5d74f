"""Reader of the global model that a device keeps between rounds."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedpatch.device_agent.state.model_cache import Held, ModelCache
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.packing import pack
from tests.fuzz.decoders import PUBLIC, TENSORS, Decoder

_MODEL = b"fedpatch global model 1\n"


def held_decoders() -> Iterator[Decoder]:
    """Yield the reader twice: unchanged, and with a checksum that always fits its content."""
    kept = _written_model()
    # `found` has no content: an empty buffer once had no limit.
    yield Decoder("held model", _model, (StateError,), (kept,), found=(_MODEL,))
    content = kept[len(_MODEL) + 32 :]
    yield Decoder("sealed held model", _Sealed(_MODEL, _model), (StateError,), (content,), frugal=False)


class _Sealed:
    """A reader of a file that puts the first line and a fitting checksum before the given content."""

    def __init__(self, line: bytes, read) -> None:
        self._line, self._read = line, read

    def __call__(self, data: bytes, folder: Path) -> None:
        self._read(self._line + hashlib.sha256(data).digest() + data, folder)


def _model(data: bytes, folder: Path) -> None:
    store = ModelCache(folder)
    store.path.write_bytes(data)
    version = store.version()
    assert store.read()[0].version == version


def _written_model() -> bytes:
    packed = pack(TENSORS, PUBLIC, {}, "fp32+zstd")
    with tempfile.TemporaryDirectory() as place:
        store = ModelCache(Path(place))
        store.write(Held("ab" * 32, PUBLIC.digest, packed.encoding, packed.raw_bytes), packed.blob)
        return store.path.read_bytes()
