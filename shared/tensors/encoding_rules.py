"""Encoding rules: in which format each tensor travels, by the encoding and the role of the tensor.

    encoding     trained values   statistics, buffers   exp_avg             exp_avg_sq   integers, other moments
    fp32, fp16   in the schema's dtype; fp16 halves trained values where it can (shared.tensors.packing)
    delta-bf16   delta-bf16       delta-bf16            bf16                bf16         unchanged
    delta-int8   delta-int8       delta-bf16            int8                delta-level  unchanged

`delta-` means the difference to the same tensor of the base. The rounding of delta-int8 has no error feedback, because it is
unbiased: with scales as coarse as its own, feedback would also correct errors that the next round's training corrects anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpatch.shared.tensors.arrays import TensorSpec

BLOCK = 1024


@dataclass(frozen=True)
class EncodingRule:
    """The format of one tensor in a delta encoding.

    Attributes:
        word: Name of the format in a blob.
        kind: "bf16", "codes" or "levels".
        delta: Whether the difference to the base is written instead of the value.
        block: Values that share one scale; 0: all values of the tensor.
        coarse: Lower bound of a scale times its greatest code, in units of the root mean square of the block. It does not apply
            to tensors of at most BLOCK values, which are small in any case.
        inward: Whether codes are rounded towards zero instead of at random.
    """

    word: str
    kind: str
    delta: bool = False
    block: int = 0
    coarse: float = 0.0
    inward: bool = False


_DELTA_BF16 = EncodingRule("delta-bf16", "bf16", delta=True)
_BF16 = EncodingRule("bf16", "bf16")
# The coarseness was chosen by measurement (docs/explanation/performance.md, Bytes): updates are a sixteenth of fp32, without
# more rounds.
_DELTA_INT8 = EncodingRule("delta-int8", "codes", delta=True, coarse=1.0)
# Rounded towards zero: if rounding makes a first moment greater than its second moment allows, Adam's steps become up to a
# thousand times too long.
_INT8 = EncodingRule("int8-blocks", "codes", block=BLOCK, coarse=0.2, inward=True)
_DELTA_LEVEL = EncodingRule("delta-level", "levels", delta=True)

# Rules of trained values, exp_avg and exp_avg_sq.
_RULES = {
    "delta-bf16": (_DELTA_BF16, _BF16, _BF16),
    "delta-int8": (_DELTA_INT8, _INT8, _DELTA_LEVEL),
}


def rule_of(encoding: str, spec: TensorSpec) -> EncodingRule | None:
    """Return the rule of a delta encoding for a tensor, or None if the tensor is sent unchanged."""
    if np.dtype(spec.dtype).kind != "f":
        return None
    trained, first, second = _RULES[encoding]
    if spec.trainable:
        return trained
    if spec.role != "moment":
        return _DELTA_BF16
    return {"exp_avg": first, "exp_avg_sq": second}.get(spec.name.rpartition(":")[2])
