"""The blob of a masked update: a header and the masked vector, not compressed because it looks random.

4 bytes   "fpm1"
32 bytes  context of the group
32 bytes  digest of the global model that training began with
rest      the vector: 1 or 2 bytes for each element, little-endian
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.masking.keys import keystreams
from fedpatch.shared.masking.private_vector import PrivateLayout
from fedpatch.shared.masking.skellam_noise import skellam_values
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.masking.vector_layout import VectorLayout, element_type
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.reason_codes import RefuseReason

_MAGIC = b"fpm1"
HEADER_BYTES = len(_MAGIC) + 64


@dataclass(frozen=True)
class MaskedUpdate:
    """A masked update.

    Attributes:
        context: The group, 32 bytes.
        base: Digest of the global model, 64 hexadecimal digits.
        elements: Masked elements, shape (layout.size,).
    """

    context: bytes
    base: str
    elements: Array


def write_masked_blob(update: MaskedUpdate) -> bytes:
    """Return the blob of a masked update."""
    return _MAGIC + update.context + bytes.fromhex(update.base) + update.elements.tobytes()


def read_masked_blob(blob: bytes, layout: VectorLayout | PrivateLayout) -> MaskedUpdate:
    """Read the blob of a masked update.

    Raises:
        UpdateRefused: "damaged": it is no such blob, or its vector is not of this layout.
    """
    if not blob.startswith(_MAGIC) or len(blob) != HEADER_BYTES + layout.nbytes:
        expected = HEADER_BYTES + layout.nbytes
        raise UpdateRefused(
            RefuseReason.DAMAGED, f"{len(blob)} bytes are no masked update of this round, which has {expected}"
        )
    context, base = blob[len(_MAGIC) : 36], blob[36:HEADER_BYTES].hex()
    return MaskedUpdate(context, base, np.frombuffer(blob, layout.dtype, offset=HEADER_BYTES))


def mask_blob(
    blob: bytes, context: bytes, masks: Iterable[Mask], bits: int, noise: SkellamNoise | None = None
) -> bytes:
    """Return a blob with masks on its vector.

    Args:
        blob: A blob of `write_masked_blob` with an unmasked vector, whose context is ignored.
        context: The group.
        bits: Bits of an element.
        noise: Noise of differential privacy; None without.
    """
    elements = np.frombuffer(blob, element_type(bits), offset=HEADER_BYTES)
    if noise is not None:
        elements = elements + skellam_values(noise, len(elements)).astype(elements.dtype)
    return write_masked_blob(MaskedUpdate(context, blob[36:HEADER_BYTES].hex(), add_masks(elements, masks)))


def add_masks(elements: Array, masks: Iterable[Mask]) -> Array:
    """Return the elements plus masks, modulo 2^bits.

    Args:
        elements: Elements of a vector or of a sum.
        masks: `masks_of_member` for a device, `Opening.masks` for a group's sum.
    """
    total, masks = elements.copy(), tuple(masks)
    for mask, stream in zip(masks, keystreams((mask.seed for mask in masks), elements.nbytes), strict=True):
        change = np.add if mask.sign > 0 else np.subtract
        change(total, np.frombuffer(stream, total.dtype), out=total)
    return total
