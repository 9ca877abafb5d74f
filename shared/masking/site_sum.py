"""The update of a relay in a masked round: the sum of its site in whole numbers, which the hub adds to those of its own groups.

Bonawitz et al. 2019, "Towards federated learning at scale", section 6: secure aggregation within each aggregator, and the
master aggregator adds the sums. It must be a sum of whole numbers, not a mean: only then does a round of two levels give the
same bits as a flat one.

One zstd frame, as each value of the sum of a few devices is small:

4 bytes   "fps1"
32 bytes  digest of the global model that training began with
4 bytes   devices in the sum, little-endian
16 bytes  for each figure of the layout: its sum, little-endian
rest      sum of each value as a signed integer, little-endian: 2 bytes where no sum of so many devices needs more, else 4
"""

from __future__ import annotations

import numpy as np
import zstandard

from fedpatch.shared.errors import UpdateRefused, UsageError, WireError
from fedpatch.shared.masking.group_sum import GroupSum
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tensors.packing import ZSTD_LEVEL_OF_DELTAS, Packed, decompress
from fedpatch.shared.wire.masking_messages import SUM_ENCODING
from fedpatch.shared.wire.reason_codes import RefuseReason

_MAGIC = b"fps1"
_COUNT_BYTES, _FIGURE_BYTES = 4, 16
_HEADER_BYTES = len(_MAGIC) + 32 + _COUNT_BYTES
LARGEST_SUM = 2**31 - 1


def most_devices(top: int) -> int:
    """Return the most devices whose sum fits its type, for values of at most `top` each.

    Example:
        >>> most_devices(top=16383)
        131080
    """
    return LARGEST_SUM // top


def write_site_sum(layout: VectorLayout, total: GroupSum, base: str) -> Packed:
    """Return the blob of a site's sum. Equal sums give equal bytes.

    Args:
        total: Sum of the site's groups, and of the sites below it.
        base: Digest of the global model, 64 hexadecimal digits.

    Raises:
        UsageError: The sum of so many devices does not fit 32 bits.
    """
    if total.devices > most_devices(layout.top):
        raise UsageError(
            f"the sum of {total.devices} devices with values up to {layout.top} does not fit 32 bits; split the site"
        )
    figures = b"".join(figure.to_bytes(_FIGURE_BYTES, "little") for figure in total.figures)
    codes = total.codes.astype(_code_type(layout, total.devices)).tobytes()
    raw = _MAGIC + bytes.fromhex(base) + total.devices.to_bytes(_COUNT_BYTES, "little") + figures + codes
    blob = zstandard.ZstdCompressor(level=ZSTD_LEVEL_OF_DELTAS).compress(raw)
    return Packed(blob, len(raw), SUM_ENCODING)


def read_site_sum(layout: VectorLayout, blob: bytes, *, raw_bytes: int, base: str) -> GroupSum:
    """Read the blob of a site's sum.

    Args:
        raw_bytes: Its size when decompressed, as announced.
        base: Digest of the round's global model.

    Raises:
        UpdateRefused: It is no such blob, or one of another model.
    """
    raw = _frame_of(layout, blob, raw_bytes)
    devices = int.from_bytes(raw[_HEADER_BYTES - _COUNT_BYTES : _HEADER_BYTES], "little")
    end = _HEADER_BYTES + _FIGURE_BYTES * len(layout.figures)
    if not 1 <= devices <= most_devices(layout.top):
        raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"a sum of {devices} devices does not fit 32 bits")
    codes_type = _code_type(layout, devices)
    if not raw.startswith(_MAGIC) or len(raw) != end + layout.num_values * codes_type.itemsize:
        raise UpdateRefused(
            RefuseReason.DAMAGED, f"{len(raw)} bytes are no sum of {devices} devices in this round's layout"
        )
    if (trained_on := raw[len(_MAGIC) : _HEADER_BYTES - _COUNT_BYTES].hex()) != base:
        detail = f"trained on the global model {trained_on[:12]}, this round's is {base[:12]}"
        raise UpdateRefused(RefuseReason.WRONG_BASE, detail)
    places = range(_HEADER_BYTES, end, _FIGURE_BYTES)
    figures = tuple(int.from_bytes(raw[place : place + _FIGURE_BYTES], "little") for place in places)
    return GroupSum(devices, np.frombuffer(raw, codes_type, offset=end).astype(np.int64), figures)


def _frame_of(layout: VectorLayout, blob: bytes, raw_bytes: int) -> bytes:
    least = _HEADER_BYTES + _FIGURE_BYTES * len(layout.figures)
    if not least <= raw_bytes <= least + 4 * layout.num_values:
        raise UpdateRefused(RefuseReason.DAMAGED, f"{raw_bytes} bytes are no sum of a site in this round")
    try:
        return decompress(blob, raw_bytes)
    except WireError as error:
        raise UpdateRefused(RefuseReason.DAMAGED, str(error)) from error


def _code_type(layout: VectorLayout, devices: int) -> np.dtype[np.signedinteger]:
    return np.dtype("<i2" if devices * layout.top < 2**15 else "<i4")
