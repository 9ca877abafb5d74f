"""Error feedback: the rounding error of one step, the residual, is added to the next step.

Seide et al. 2014; Karimireddy et al. 2019 (EF-SGD, Algorithm 1). The residual of a tensor `fc1.weight` is named
`fc1.weight:residual`. No schema has this name, so a residual cannot be sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpatch.shared.errors import SchemaMismatch
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec, moment_name
from fedpatch.shared.tensors.encoding_rules import FEEDBACK
from fedpatch.shared.tensors.encodings import NO_SEED, feedback_share
from fedpatch.shared.tensors.packing import Packed, pack, unpack


def residual_name(tensor: str) -> str:
    """Return the name of a tensor's residual: `fc1.weight` -> `fc1.weight:residual`."""
    return moment_name(tensor, "residual")


def is_residual(name: str) -> bool:
    """Return whether `name` is the name of a residual."""
    return name.endswith(residual_name(""))


@dataclass(frozen=True)
class StepWithFeedback:
    """A step that was packed with error feedback.

    Attributes:
        packed: The blob.
        tensors: The tensors that a receiver decodes from the blob.
        residual: Rounding errors, to be passed to the next step.
    """

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
    subset_seed: bytes = NO_SEED,
) -> tuple[Packed, dict[str, Array]]:
    """Pack tensors plus residual, and return the next residual: the values intended less the values decoded.

    In an encoding of a public subset it is a share of this difference (`feedback_share`). Only trained values have a residual,
    and only with an encoding in FEEDBACK. With any other encoding the given residual is ignored and the next one is empty.
    Residual values that are not finite become zero.

    Args:
        meta: Plain data to pack beside them, as for `pack`.
        encoding: One of ENCODINGS.
        base: Tensors that a delta encoding subtracts, as for `pack`.
        seed: Seed of the rounding.
        residual: Residual of the step before. An absent tensor counts as zero, tensors of other names are ignored.
        subset_seed: Seed of the round, as for `pack`.

    Returns:
        The blob and the next residual.

    Raises:
        SchemaMismatch: Tensors are not those of `schema`, or a residual has another shape.
        UsageError, ValueError: As `pack`.
    """
    if encoding not in FEEDBACK:
        return pack(tensors, schema, meta, encoding, base=base, seed=seed), {}
    step = step_with_feedback(
        tensors, schema, meta, encoding, base=base, seed=seed, residual=residual, subset_seed=subset_seed
    )
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
    subset_seed: bytes = NO_SEED,
) -> StepWithFeedback:
    """Do as `pack_with_feedback`, and also return the tensors that a receiver decodes.

    Returns:
        The blob, the decoded tensors and the next residual.

    Raises:
        SchemaMismatch: As `pack_with_feedback`.
        UsageError, ValueError: As `pack`.
    """
    schema.check_names(tensors)
    trained = [spec for spec in schema.specs if spec.trainable and encoding in FEEDBACK]
    intended = {spec.name: _sum(tensors[spec.name], residual, spec) for spec in trained}
    packed = pack({**tensors, **intended}, schema, meta, encoding, base=base, seed=seed, subset_seed=subset_seed)
    _, decoded = unpack(packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=schema, base=base)
    shares = {spec.name: feedback_share(spec, encoding, subset_seed) for spec in trained}
    left = {residual_name(name): _left(values, decoded[name], shares[name]) for name, values in intended.items()}
    return StepWithFeedback(packed, decoded, left)


def _left(intended: Array, decoded: Array, share: Array) -> Array:
    with np.errstate(invalid="ignore"):
        error = (intended - decoded) * share
        return np.where(np.isfinite(error), error, 0).astype(intended.dtype)


def _sum(values: Array, residual: Tensors, spec: TensorSpec) -> Array:
    known = residual.get(residual_name(spec.name))
    if known is None:
        return values
    if known.shape != spec.shape:
        raise SchemaMismatch(f"{residual_name(spec.name)}: shape {known.shape}, agreed {spec.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values + known).astype(spec.dtype)
