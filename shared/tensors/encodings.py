"""Delta encodings of tensors: the bytes of each tensor, by its rule (shared.tensors.encoding_rules).

A tensor is sent unchanged, in the schema's dtype, if it holds a value that its rule cannot write: one that is not finite,
beyond a quarter of the dtype's range, or a negative variance. The receiver then sees the sender's values, and its usual checks
reject them. Statistics and buffers are also sent unchanged where the rounding of the difference would exceed STATISTICS_ERROR
of a value.

There are three formats, each a pair of pure functions between a flat array and bytes. Decoding gives the same bits on every
machine: it uses only IEEE sums, products and `ldexp` of literal numbers, and no logarithm, whose last bit depends on the
machine.

- bf16: the upper half of a float32, rounded to nearest even. All upper bytes come before all lower ones, because each kind
  compresses better alone.
- Codes: integers times a scale for each block, rounded at random so that the expected value is exact (Alistarh et al. 2017,
  QSGD, section 3).
- Levels: non-negative values on a grid of eight levels per octave. They are for second moments, a third of which would be
  zero in fp16.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpatch.shared.errors import WireError
from fedpatch.shared.tensors.arrays import Array, Tensors, TensorSpec
from fedpatch.shared.tensors.encoding_rules import BLOCK, EncodingRule, rule_of
from fedpatch.shared.tensors.integer_codes import from_codes, to_codes
from fedpatch.shared.tensors.levels import from_levels, to_levels

Rng = np.random.Generator


def to_bf16(values: Array) -> bytes:
    """Return two bytes per value: all upper bytes, then all lower ones. `values` are finite."""
    words = values.astype(np.float32).view(np.uint32)
    halves = ((words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    return halves.view(np.uint8).reshape(-1, 2)[:, ::-1].T.tobytes()


def from_bf16(data: memoryview) -> Array:
    """Return the float32 values of `data`, one for each two bytes."""
    planes = np.frombuffer(data, np.uint8).reshape(2, -1)
    halves = np.ascontiguousarray(planes[::-1].T).view("<u2").reshape(-1)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


STATISTICS_ERROR = 2.0**-8
"""Greatest relative error of a statistic or a buffer, that of bf16 itself; beyond it the tensor is sent unchanged."""


def wide(dtype: Any) -> np.dtype[Any]:
    """Return the dtype for computing with values of `dtype`: float64 for float64, else float32."""
    return np.result_type(dtype, np.float32)


def greatest(dtype: Any) -> float:
    """Return the greatest magnitude that every format here can write: a quarter of the range, so that no sum overflows."""
    return min(float(np.finfo(dtype).max), float(np.finfo(np.float32).max)) / 4


def encode_all(
    tensors: Tensors, base: Tensors, specs: Sequence[TensorSpec], encoding: str, *, rng: Rng
) -> dict[str, tuple[str, bytes]]:
    """Write all tensors that a delta encoding has rules for and that the rules can write.

    Args:
        tensors: Arrays with the shapes of `specs`, of a dtype that can be cast to theirs.
        base: The base's tensors of the same names and shapes.
        specs: Entries of the tensors in the schema, in the order in which `rng` is drawn from.
        encoding: A delta encoding.
        rng: Random numbers for rounding.

    Returns:
        The rule's word and the bytes by name. A tensor without an entry must be sent unchanged.
    """
    found = {}
    for spec in specs:
        if rule := rule_of(encoding, spec):
            with np.errstate(over="ignore"):
                values = tensors[spec.name].astype(spec.dtype, copy=False)
            if (data := encode(values, base[spec.name], spec, rule, rng)) is not None:
                found[spec.name] = rule.word, data
    return found


def decode_all(
    entries: Mapping[str, tuple[str, memoryview]], base: Tensors, specs: Mapping[str, TensorSpec], encoding: str
) -> dict[str, Array]:
    """Read all tensors that a delta encoding's rules wrote.

    Args:
        entries: The form and the bytes by name.
        base: The base's tensors of the same names and shapes.
        specs: Entries of the tensors in the schema, by name.
        encoding: The delta encoding.

    Returns:
        The tensors whose form is the word of their rule.

    Raises:
        WireError: As `decode`.
    """
    rules = {name: rule_of(encoding, specs[name]) for name in entries}
    return {
        name: decode(data, base[name], specs[name], rule)
        for name, (form, data) in entries.items()
        if (rule := rules[name]) and rule.word == form
    }


def encode(values: Array, base: Array, spec: TensorSpec, rule: EncodingRule, rng: Rng) -> bytes | None:
    """Write a tensor by a rule.

    Args:
        values: The tensor, with the shape and dtype of `spec`.
        base: The base's tensor of the same name and shape.
        spec: The tensor's entry in the schema.
        rule: `rule_of` this tensor.
        rng: Random numbers for rounding.

    Returns:
        The bytes, or None if the rule cannot write these values: then the tensor must be sent unchanged.
    """
    flat = values.reshape(-1).astype(wide(spec.dtype))
    before = base.reshape(-1).astype(flat.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        change = flat - before if rule.delta else flat
    limit = greatest(spec.dtype)
    # `not within`, rather than `beyond`: a comparison with NaN is always false.
    if not (_within(flat, limit) and _within(change, limit)):
        return None
    if spec.never_negative and (flat < 0).any():
        return None
    data = _encoded(flat, before, change, rule, rng)
    return data if spec.trainable or spec.role == "moment" or _keeps_statistics(flat, before, change) else None


def _keeps_statistics(flat: Array, before: Array, change: Array) -> bool:
    """Return whether delta-bf16 writes all values with at most STATISTICS_ERROR of their own size.

    Its error is a share of the change. A variance that falls from 1 to 0.0001 would become 0, and each device would then divide
    by epsilon; a mean that falls from 1000 to 20 would miss it by several deviations.
    """
    decoded = before + from_bf16(memoryview(to_bf16(change)))
    return bool((np.abs(decoded - flat) <= STATISTICS_ERROR * np.abs(flat)).all())


def _encoded(flat: Array, before: Array, change: Array, rule: EncodingRule, rng: Rng) -> bytes:
    match rule.kind:
        case "bf16":
            return to_bf16(change)
        case "codes":
            coarse = rule.coarse if change.size > BLOCK else 0
            scales, codes = to_codes(change, rule.block, None if rule.inward else rng, coarse)
            return scales.astype("<f4").tobytes() + codes.tobytes()
        case _:
            top, levels = to_levels(flat, before, rng)
            return struct.pack("<h", top) + levels.tobytes()


def decode(data: memoryview, base: Array, spec: TensorSpec, rule: EncodingRule) -> Array:
    """Read the bytes that `encode` wrote.

    Args:
        data: The bytes of one tensor.
        base: The base's tensor of the same name and shape.
        spec: The tensor's entry in the schema.
        rule: The rule that wrote `data`.

    Returns:
        A new array with the shape and dtype of `spec`. Values may be infinite or NaN.

    Raises:
        WireError: `data` has another number of bytes than the rule takes for this shape.
    """
    flat = base.reshape(-1).astype(wide(spec.dtype), copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(data) != (expected := _bytes_of(rule, flat.size)):
            raise WireError(f"{spec.name}: {len(data)} bytes where {rule.word} takes {expected} for {spec.shape}")
        values = _values(data, flat, spec, rule)
        return values.reshape(spec.shape).astype(spec.dtype, copy=False)


def _values(data: memoryview, base: Array, spec: TensorSpec, rule: EncodingRule) -> Array:
    """Return the values that travelled, in a new array of the dtype of `base`."""
    values = _decoded(data, base, rule)
    if rule.delta and rule.kind != "levels":
        values = np.add(base, values, out=values) if values.dtype == base.dtype else base + values
    if spec.never_negative:
        np.maximum(values, 0, out=values)
    return values


def _decoded(data: memoryview, base: Array, rule: EncodingRule) -> Array:
    if rule.kind == "bf16":
        return from_bf16(data)
    if rule.kind == "codes":
        begin = len(data) - base.size
        scales, codes = np.frombuffer(data[:begin], "<f4"), np.frombuffer(data[begin:], np.int8)
        return from_codes(scales, codes, rule.block, base.dtype)
    return from_levels(struct.unpack("<h", data[:2])[0], np.frombuffer(data[2:], np.uint8), base, base.dtype)


def _bytes_of(rule: EncodingRule, size: int) -> int:
    if rule.kind == "bf16":
        return 2 * size
    if rule.kind == "levels":
        return 2 + size
    blocks = -(-size // rule.block) if rule.block else min(size, 1)
    return 4 * blocks + size


def _within(values: Array, limit: float) -> bool:
    return bool(values.size == 0 or np.abs(values).max() <= limit)
