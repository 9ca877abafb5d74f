"""In which encoding a device is asked for its update: the run's, or the first that both sides know."""

from __future__ import annotations

from collections.abc import Collection

EVERYWHERE = "fp32+zstd"
"""Every device knows it; the whole model of a run whose encoding carries differences travels so too."""

ENCODING_HELP = (
    "How models and updates travel: as values (fp32), in half of the bits (fp16), either compressed (+zstd), or as differences "
    "of 16, 8 or 4 bits, compressed too: a fraction of the bytes. A device that lacks it is asked for another."
)

_FALLBACKS = (EVERYWHERE, "fp32", "fp16+zstd", "fp16")


def encoding_for(wanted: str, known: Collection[str]) -> str:
    """`wanted` where it is among those that a device says it knows, else the best of the others that both sides know."""
    return next((one for one in (wanted, *_FALLBACKS) if one in known), EVERYWHERE)
