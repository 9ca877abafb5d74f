"""Named tensors: one flat mapping from names to NumPy arrays for a model and the moments of its optimizer.

The moments of a parameter `p` are the tensors `p:exp_avg`, `p:exp_avg_sq` (shape and dtype of `p`) and `p:step` (shape (),
float32). Algorithm 1 of the paper calls them V. A moment is sent, averaged and kept private together with its parameter.
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


def require_finite(tensors: Tensors, *, kept: Tensors | None = None) -> None:
    """Raise UpdateRefused("not_finite"), which names the first tensor that holds a NaN or an infinity.

    Args:
        kept: Earlier values by name. A value that is not finite is allowed where the earlier one is the same, such as the minus
            infinity of a causal mask.
    """
    for name in sorted(tensors):
        array = tensors[name]
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        wrong = ~np.isfinite(array)
        remedy = "a smaller learning rate may help"
        if kept is not None and (before := kept.get(name)) is not None and before.shape == array.shape:
            wrong &= ~((array == before) | (np.isnan(array) & np.isnan(before)))
            remedy = "it is not trained, but the model changes it: let it begin and stay finite"
        if wrong.any():
            count = int(wrong.sum())
            raise UpdateRefused("not_finite", f"{name}: {count} of {array.size} values are not finite; {remedy}")


def values_digest(tensors: Tensors, schema: Schema) -> str:
    """Return the SHA-256 (hexadecimal) over names, dtypes, shapes and values (`little_endian`) of the tensors of `schema`.

    Equal bits give equal digests, for any memory layout. Raises SchemaMismatch unless `tensors` has exactly the
    tensors of `schema`.
    """
    schema.check(tensors)
    digest = hashlib.sha256()
    for spec in schema.specs:
        header = json.dumps([spec.name, spec.dtype, list(spec.shape)], separators=(",", ":"))
        digest.update(f"{header}\n".encode())
        digest.update(little_endian(tensors[spec.name]))
    return digest.hexdigest()


def little_endian(array: Array) -> bytes:
    """Return the values in C order, least significant byte first: their form in every blob."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
