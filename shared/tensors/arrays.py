"""Named tensors and the schema that coordinator and device agree on.

A model and the moments of its optimizer are one flat mapping from names to arrays. The moments of a parameter `p` are
the tensors `p:exp_avg`, `p:exp_avg_sq` (shape and dtype of `p`) and `p:step` (shape (), float32): what the paper calls
V in Algorithm 1 travels, is averaged and is kept private exactly as the values it belongs to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.schema import DTYPES as DTYPES
from fedpatch.shared.tensors.schema import MAX_NAME_BYTES as MAX_NAME_BYTES
from fedpatch.shared.tensors.schema import MAX_RANK as MAX_RANK
from fedpatch.shared.tensors.schema import MAX_SCHEMA_BYTES as MAX_SCHEMA_BYTES
from fedpatch.shared.tensors.schema import MAX_TENSORS as MAX_TENSORS
from fedpatch.shared.tensors.schema import MOMENTS as MOMENTS
from fedpatch.shared.tensors.schema import ROLES as ROLES
from fedpatch.shared.tensors.schema import TRAINABLE as TRAINABLE
from fedpatch.shared.tensors.schema import Role as Role
from fedpatch.shared.tensors.schema import Schema as Schema
from fedpatch.shared.tensors.schema import TensorSpec as TensorSpec
from fedpatch.shared.tensors.schema import UnexpectedTensors as UnexpectedTensors
from fedpatch.shared.tensors.schema import base_name as base_name
from fedpatch.shared.tensors.schema import listing as listing
from fedpatch.shared.tensors.schema import moment_name as moment_name

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = Mapping[str, Array]


def require_finite(tensors: Tensors) -> None:
    """Raise UpdateRefused("not_finite") naming the first tensor that holds a NaN or an infinity."""
    for name in sorted(tensors):
        array = tensors[name]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = array.size - int(np.isfinite(array).sum())
            raise UpdateRefused(
                "not_finite", f"{name}: {bad} of {array.size} values are not finite; a smaller learning rate may help"
            )


def never_negative(spec: TensorSpec) -> bool:
    """Whether no value of this tensor can be below zero: a variance, a count, a second moment."""
    if spec.role == "stats":
        return spec.name.rpartition(".")[2] in ("running_var", "num_batches_tracked")
    return spec.role == "moment" and spec.name.endswith((":exp_avg_sq", ":step"))


def values_digest(tensors: Tensors, schema: Schema) -> str:
    """SHA-256 hex over the names, dtypes, shapes and values (`little_endian`) of exactly the tensors of `schema`.

    Equal for equal bits, however they came and whatever their memory layout. Raises SchemaMismatch for other tensors.
    """
    schema.check(tensors)
    digest = hashlib.sha256()
    for spec in schema.specs:
        head = json.dumps([spec.name, spec.dtype, list(spec.shape)], separators=(",", ":"), ensure_ascii=True)
        digest.update(f"{head}\n".encode())
        digest.update(little_endian(tensors[spec.name]))
    return digest.hexdigest()


def little_endian(array: Array) -> bytes:
    """Values in C order, least significant byte first: the only form in which they travel."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
