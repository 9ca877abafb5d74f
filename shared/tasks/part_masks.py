"""Masks of training and test examples that know which part they are, so that nobody can swap them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpatch.shared.errors import UsageError

Mask = NDArray[np.bool_]
TRAIN, TEST = "train", "test"


class PartMask(np.ndarray):
    """A boolean mask of one part. Whatever is computed from it, such as its inverse, is an ordinary array.

    Attributes:
        part: TRAIN or TEST; "" for a result of a computation.
    """

    part: str

    def __array_finalize__(self, obj: Any) -> None:
        """Forget the part: numpy calls this for each new array."""
        self.part = ""


def of_part(mask: Mask, part: str) -> Mask:
    """Return `mask` with the name of its part."""
    found = np.array(mask, bool).view(PartMask)
    found.part = part
    return found


def parts_of(masks: Sequence[Any], train: Any, test: Any, count: int) -> tuple[Mask | None, Mask]:
    """Return the masks of the training examples (None: all others) and of the test examples.

    Args:
        masks: Masks of `fedpatch.splits` in any order, or one mask of test examples.
        train: Mask of the training examples by name.
        test: Mask of the test examples by name.
        count: Number of examples.

    Raises:
        UsageError: A part is absent, named twice or unknown, a mask is no mask, an example is in both parts, or a mask without
            a name has more than half of the examples.
    """
    found: dict[str, Any] = {name: mask for name, mask in ((TRAIN, train), (TEST, test)) if mask is not None}
    for mask in masks:
        part = getattr(mask, "part", "")
        if not part and len(masks) > 1:
            raise UsageError("two masks without names could be swapped; give them by name: train=..., test=...")
        part = part or TEST
        if part in found:
            raise UsageError(
                f"two masks of the {part} examples are given; give one of the training and one of the test examples"
            )
        found[part] = mask
    if TEST not in found:
        raise UsageError("no mask of the test examples is given; split them off with fedpatch.splits")
    plain = {name: _mask(name, mask, count) for name, mask in found.items()}
    if len(masks) == 1 and not getattr(masks[0], "part", "") and plain[TEST].sum() > count / 2:
        raise UsageError(
            f"a mask without a name has {plain[TEST].sum()} of {count} examples, more than half, and would be that of the "
            "test examples; give it by name: train=... or test=..."
        )
    if TRAIN in plain and (both := int((plain[TRAIN] & plain[TEST]).sum())):
        raise UsageError(f"{both} examples are in the training and in the test mask; put each in one of them")
    return plain.get(TRAIN), plain[TEST]


def _mask(name: str, mask: ArrayLike, count: int) -> Mask:
    found = np.asarray(mask)
    if found.dtype != bool or found.shape != (count,):
        raise UsageError(
            f"the {name} mask is {found.dtype} of shape {found.shape}; it must have True or False for each of the {count} "
            "examples (split the windows, not the readings from which they are cut)"
        )
    return found
