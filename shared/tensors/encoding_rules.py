"""Encoding rules: in which format each tensor travels, by the encoding and the role of the tensor.

    encoding     trained values   statistics, buffers   exp_avg             exp_avg_sq   integers, other moments
    fp32, fp16   in the schema's dtype; fp16 halves trained values where it can (shared.tensors.packing)
    delta-bf16   delta-bf16       delta-bf16            bf16                bf16         unchanged
    delta-int8   delta-int8       delta-bf16            int8                delta-level  unchanged
    delta-int4   delta-int4       delta-bf16            int4                delta-level  unchanged

`delta-int8-half` and `delta-int8-quarter` are delta-int8 of one of two or four values, the public subset of the round
(shared.tensors.subset); the others keep those of the base. The moments of a value travel with it. Statistics, and tensors of
one dimension, travel whole. `delta-` means the difference to the same tensor of the base.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedpatch.shared.tensors.arrays import TensorSpec
from fedpatch.shared.tensors.integer_codes import INT4_TOP, INT8_TOP

BLOCK = 1024
KEEP = {"delta-int8-half": 2, "delta-int8-quarter": 4}
"""Encodings of a public subset: one of so many values travels in a round."""
FEEDBACK = ("delta-int4", *KEEP)
"""Encodings with error feedback (shared.tensors.error_feedback): of coarse rounding, or of values that are left out.

The rounding of delta-int8 has no feedback, because it is unbiased. With scales as coarse as its own, feedback would also
correct errors that the next round's training corrects anyway, and the residual would grow.
"""


@dataclass(frozen=True)
class EncodingRule:
    """The format of one tensor in a delta encoding.

    Attributes:
        word: Name of the format in a blob.
        kind: "bf16", "codes" or "levels".
        delta: Whether the difference to the base is written instead of the value.
        top: Greatest code.
        block: Values that share one scale; 0: all values of the tensor.
        coarse: Lower bound of a scale times `top`, in units of the root mean square of the block. It does not apply to tensors
            of at most BLOCK values, which are small in any case.
        inward: Whether codes are rounded towards zero instead of at random.
        keep: One of so many values travels, drawn by the round's seed, which the bytes begin with; 1: all, and no seed.
    """

    word: str
    kind: str
    delta: bool = False
    top: int = 0
    block: int = 0
    coarse: float = 0.0
    inward: bool = False
    keep: int = 1


_DELTA_BF16 = EncodingRule("delta-bf16", "bf16", delta=True)
_BF16 = EncodingRule("bf16", "bf16")
# The coarseness was chosen by measurement (docs/explanation/performance.md, Bytes): updates are a sixteenth of fp32, without
# more rounds.
_DELTA_INT8 = EncodingRule("delta-int8", "codes", delta=True, top=INT8_TOP, coarse=1.0)
# Rounded towards zero: if rounding makes a first moment greater than its second moment allows, Adam's steps become up to a
# thousand times too long.
_INT8 = EncodingRule("int8-blocks", "codes", top=INT8_TOP, block=BLOCK, coarse=0.2, inward=True)
_DELTA_INT4 = EncodingRule("delta-int4", "codes", delta=True, top=INT4_TOP, block=BLOCK)
_INT4 = EncodingRule("int4-blocks", "codes", top=INT4_TOP, block=BLOCK, inward=True)
_DELTA_LEVEL = EncodingRule("delta-level", "levels", delta=True)

# Rules of trained values, exp_avg and exp_avg_sq.
_RULES = {
    "delta-bf16": (_DELTA_BF16, _BF16, _BF16),
    "delta-int8": (_DELTA_INT8, _INT8, _DELTA_LEVEL),
    "delta-int4": (_DELTA_INT4, _INT4, _DELTA_LEVEL),
}


def _of_subset(rule: EncodingRule, name: str, keep: int) -> EncodingRule:
    return replace(rule, word=f"{rule.word}-{name.rpartition('-')[2]}", keep=keep)


_SUBSET_RULES = {
    name: tuple(_of_subset(rule, name, keep) for rule in _RULES["delta-int8"]) for name, keep in KEEP.items()
}


def _rules_of(encoding: str, spec: TensorSpec) -> tuple[EncodingRule, ...]:
    """Vectors, such as a bias, have few values: they travel whole also in an encoding of a subset."""
    if encoding not in KEEP:
        return _RULES[encoding]
    return _SUBSET_RULES[encoding] if len(spec.shape) > 1 else _RULES["delta-int8"]


def rule_of(encoding: str, spec: TensorSpec) -> EncodingRule | None:
    """Return the rule of a delta encoding for a tensor, or None if the tensor is sent unchanged."""
    if np.dtype(spec.dtype).kind != "f":
        return None
    trained, first, second = _rules_of(encoding, spec)
    if spec.trainable:
        return trained
    if spec.role != "moment":
        return _DELTA_BF16
    return {"exp_avg": first, "exp_avg_sq": second}.get(spec.name.rpartition(":")[2])
