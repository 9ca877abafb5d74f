"""Which encoding serves where the run's does not: for the update of a device that lacks it, and for a whole model."""

from __future__ import annotations

from collections.abc import Collection

from shared.messages import is_delta

EVERYWHERE = "fp32+zstd"
"""Every device knows it, and it keeps every bit."""

ENCODING_HELP = (
    "How models and updates travel: as values (fp32), in half of the bits (fp16), either compressed (+zstd), or as differences "
    "of 16, 8 or 4 bits, compressed too: a fraction of the bytes. A device that lacks it is asked for another."
)

_FALLBACKS = (EVERYWHERE, "fp32", "fp16+zstd", "fp16")


def encoding_for(wanted: str, known: Collection[str]) -> str:
    """`wanted` where it is among those that a device says it knows, else the best of the others that both sides know."""
    return next((one for one in (wanted, *_FALLBACKS) if one in known), EVERYWHERE)


def whole_model_encoding(wanted: str) -> str:
    """That of a whole model in a run that wants `wanted`: with every bit where updates are differences from it."""
    return EVERYWHERE if is_delta(wanted) else wanted
