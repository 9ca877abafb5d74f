"""The rounding errors of coarse encodings, which are added to the device's next update (error feedback).

A file beside the patch, with the same permissions, for the same task, schema and policy, has the residual after one round;
the file before it is kept too. So a repeated round begins with the residual before it, and gives the same update again. A
residual of another run or encoding is not used: then nothing is added.

A residual has a value for each trained value, and is written to a card in every round. So a file holds one state, where a
patch file holds two, with four bits per value, rounded at random; this loses a fiftieth of the residual's energy.

Seide, F., et al.: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs,
Interspeech 2014, section 3.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack
import numpy as np

from fedpatch.device_agent.state.patch_store import PATCH_SUFFIX, RESIDUAL_LINE, RESIDUAL_SUFFIX, PatchKey
from fedpatch.shared.app.files import (
    previous_of,
    read_header,
    read_state,
    refusals_of,
    seal,
    unseal,
    write_after,
    write_atomic,
)
from fedpatch.shared.errors import FedpatchError, StateUnreadable
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, base_name
from fedpatch.shared.tensors.error_feedback import residual_name
from fedpatch.shared.tensors.packing import decoded_as, pack, unpack

STORED_AS = "delta-int4"
_FIELDS = {"encoding": str, "schema": str, "run": str, "round": int, "raw_bytes": int}

log = logging.getLogger("fedpatch.patches")


@dataclass(frozen=True)
class ResidualOf:
    """Origin of a residual: encoding of the update, schema of the public tensors, run and round."""

    encoding: str
    schema: str
    run: str
    round: int


class ResidualStore:
    """The residuals of one device in `directory`, which is that of its patches and exists."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: PatchKey, of: ResidualOf, public: Schema) -> dict[str, Array]:
        """Return the residual of the round before a given one.

        Args:
            of: The round, with its encoding and schema.
            public: Schema of the public tensors.

        Returns:
            float32 arrays by `NAME:residual`; empty if there is none.
        """
        path = self._path(key)
        for candidate in (path, previous_of(path)):
            known = _read(candidate, public)
            if known is not None and _before(known[0], of):
                return known[1]
        return {}

    def save(self, key: PatchKey, of: ResidualOf, public: Schema, values: Tensors, seed: int) -> None:
        """Save the residual of a round, and keep the former file.

        Args:
            of: The round, with its encoding and schema.
            public: Schema of the public tensors.
            values: Residuals by `NAME:residual`.
            seed: Seed of the rounding.

        Raises:
            StateError: The disk refused; nothing has changed.
        """
        path = self._path(key)
        with refusals_of(path):
            if not values:
                path.unlink(missing_ok=True)
                previous_of(path).unlink(missing_ok=True)
                return
            newest = _read(path, public)
            write = write_after if newest is not None and _before(newest[0], of) else write_atomic
            write(path, _encode(of, public, values, seed))

    def _path(self, key: PatchKey) -> Path:
        return self._directory / (key.file_name.removesuffix(PATCH_SUFFIX) + RESIDUAL_SUFFIX)


def as_kept(values: Tensors, public: Schema, seed: int) -> dict[str, Array]:
    """Return the residuals that `load` returns after `save` with the same arguments."""
    schema = _schema(public)
    plain = {base_name(name): array for name, array in values.items()}
    kept = decoded_as(plain, schema, STORED_AS, base=_zeros(schema), seed=seed)
    return {residual_name(name): array for name, array in kept.items()}


def _before(known: ResidualOf, of: ResidualOf) -> bool:
    """Return whether the residual `known` is to be added in the round `of`."""
    same = (known.encoding, known.schema, known.run) == (of.encoding, of.schema, of.run)
    return same and known.round < of.round


def _schema(public: Schema) -> Schema:
    return public.subset(spec.name for spec in public.specs if spec.trainable)


def _encode(of: ResidualOf, public: Schema, values: Tensors, seed: int) -> bytes:
    blob, raw_bytes = _packed(values, public, seed)
    return seal(RESIDUAL_LINE, msgpack.packb({**asdict(of), "raw_bytes": raw_bytes}) + blob)


def _packed(values: Tensors, public: Schema, seed: int) -> tuple[bytes, int]:
    schema = _schema(public)
    plain = {base_name(name): array for name, array in values.items()}
    packed = pack(plain, schema, {}, STORED_AS, base=_zeros(schema), seed=seed)
    return packed.blob, packed.raw_bytes


def _unpacked(blob: bytes, raw_bytes: int, public: Schema) -> dict[str, Array]:
    schema = _schema(public)
    _, plain = unpack(blob, encoding=STORED_AS, raw_bytes=raw_bytes, schema=schema, base=_zeros(schema))
    return {residual_name(name): array for name, array in plain.items()}


def _read(path: Path, public: Schema) -> tuple[ResidualOf, dict[str, Array]] | None:
    """Read a residual; None if there is no file, or it is damaged or of another model, which costs little.

    Raises:
        StateUnreadable: It cannot be read now.
    """
    try:
        return _decode(path, read_state(path), public)
    except FileNotFoundError:
        return None
    except StateUnreadable:
        raise
    except FedpatchError as error:
        log.warning("%s; the next update goes without it", error)
        return None


def _decode(path: Path, data: bytes, public: Schema) -> tuple[ResidualOf, dict[str, Array]] | None:
    content = unseal(path, RESIDUAL_LINE, data, "a residual")
    fields, length = read_header(path, content, _FIELDS)
    raw_bytes, of = fields.pop("raw_bytes"), ResidualOf(**fields)
    return of, _unpacked(bytes(content[length:]), raw_bytes, public) if of.schema == public.digest else {}


def _zeros(schema: Schema) -> dict[str, Array]:
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.specs}
