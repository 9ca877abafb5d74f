"""Readers of data that a device keeps between rounds besides its patch: the global model, and the residuals of updates."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedpatch.device_agent.state.model_cache import Held, ModelCache
from fedpatch.device_agent.state.patch_store import PatchKey
from fedpatch.device_agent.state.residual_store import ResidualOf, ResidualStore
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.packing import pack
from tests.fuzz.decoders import PUBLIC, TENSORS, Decoder

_MODEL, _RESIDUAL = b"fedpatch global model 1\n", b"fedpatch residual 1\n"
_KEY = PatchKey("digits", "ab" * 32, "affine")
_OF = ResidualOf("delta-int8", PUBLIC.digest, "run", 1)


def held_decoders() -> Iterator[Decoder]:
    """Yield each reader twice: unchanged, and with a checksum that always fits its content."""
    for name, line, read, kept in (
        ("held model", _MODEL, _model, _written_model()),
        ("residual", _RESIDUAL, _residual, _written_residual()),
    ):
        # `found` has no content: an empty buffer once had no limit.
        yield Decoder(name, read, (StateError,), (kept,), found=(line,))
        content = kept[len(line) + 32 :]
        yield Decoder(f"sealed {name}", _Sealed(line, read), (StateError,), (content,), frugal=False)


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


def _residual(data: bytes, folder: Path) -> None:
    """Unreadable data are skipped and logged."""
    (folder / _KEY.file_name).with_suffix(".residual").write_bytes(data)
    found = ResidualStore(folder).load(_KEY, ResidualOf(_OF.encoding, _OF.schema, _OF.run, 2), PUBLIC)
    assert found.keys() <= {"fc.weight:residual"}


def _written_model() -> bytes:
    packed = pack(TENSORS, PUBLIC, {}, "fp32+zstd")
    with tempfile.TemporaryDirectory() as place:
        store = ModelCache(Path(place))
        store.write(Held("ab" * 32, PUBLIC.digest, packed.encoding, packed.raw_bytes), packed.blob)
        return store.path.read_bytes()


def _written_residual() -> bytes:
    values = {"fc.weight:residual": np.ones((3, 2), np.float32)}
    with tempfile.TemporaryDirectory() as place:
        ResidualStore(Path(place)).save(_KEY, _OF, PUBLIC, values, 1)
        [path] = Path(place).iterdir()
        return path.read_bytes()
