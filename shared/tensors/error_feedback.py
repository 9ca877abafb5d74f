"""Error feedback: what rounding takes away from one step is given with the next.

Seide et al. 2014; Karimireddy et al. 2019 (EF-SGD, Algorithm 1). The residual of a tensor `fc1.weight` is named
`fc1.weight:residual`; no schema has that name, so it cannot travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpatch.shared.errors import SchemaMismatch
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec, moment_name
from fedpatch.shared.tensors.encodings import FEEDBACK
from fedpatch.shared.tensors.packing import Packed, pack, unpack
from fedpatch.shared.tensors.quantise import wide


def residual_name(tensor: str) -> str:
    """`fc1.weight` -> `fc1.weight:residual`."""
    return moment_name(tensor, "residual")


def is_residual(name: str) -> bool:
    """Whether `residual_name` made it."""
    return name.endswith(residual_name(""))


@dataclass(frozen=True)
class StepWithFeedback:
    """A packed blob, the tensors that whoever unpacks it will have, and the residual that this leaves."""

    packed: Packed
    tensors: dict[str, Array]
    residual: dict[str, Array]


def pack_with_feedback(
    tensors: Tensors,
    schema: Schema,
    meta: Mapping[str, Any],
    encoding: str,
    *,
    base: Tensors | None,
    seed: int,
    residual: Tensors,
) -> tuple[Packed, dict[str, Array]]:
    """`pack` of tensors + residual, and the residual that this leaves: what was intended less what will be decoded.

    Only what is trained has a residual, and only where the encoding is as coarse as to need one; else there is none
    after. A residual that is not given is zero, one of another name is left out, and one that comes out not finite is
    zero. Raises what `pack` raises, and SchemaMismatch for a residual of another shape.
    """
    if encoding not in FEEDBACK:
        return pack(tensors, schema, meta, encoding, base=base, seed=seed), {}
    step = step_with_feedback(tensors, schema, meta, encoding, base=base, seed=seed, residual=residual)
    return step.packed, step.residual


def step_with_feedback(
    tensors: Tensors,
    schema: Schema,
    meta: Mapping[str, Any],
    encoding: str,
    *,
    base: Tensors | None,
    seed: int,
    residual: Tensors,
) -> StepWithFeedback:
    """`pack_with_feedback`, and what comes out when it is unpacked, for whoever needs both; raises the same."""
    schema.check_names(tensors)
    trained = [spec for spec in schema.specs if spec.trainable and encoding in FEEDBACK]
    intended = {spec.name: _sum(tensors[spec.name], residual, spec) for spec in trained}
    packed = pack({**tensors, **intended}, schema, meta, encoding, base=base, seed=seed)
    _, decoded = unpack(packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=schema, base=base)
    with np.errstate(over="ignore", invalid="ignore"):
        left = {residual_name(name): intended[name] - decoded[name] for name in intended}
    after = {name: np.where(np.isfinite(values), values, 0).astype(values.dtype) for name, values in left.items()}
    return StepWithFeedback(packed, decoded, after)


def _sum(values: Array, residual: Tensors, spec: TensorSpec) -> Array:
    known = residual.get(residual_name(spec.name))
    if known is None:
        return values
    if known.shape != spec.shape:
        raise SchemaMismatch(f"{residual_name(spec.name)}: shape {known.shape}, agreed {spec.shape}")
    dtype = wide(spec.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values.astype(dtype) + known.astype(dtype)).astype(spec.dtype)
