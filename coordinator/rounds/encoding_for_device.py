"""The encoding of models and updates: the one that a run asks for, or the best other one that both sides support."""

from __future__ import annotations

from collections.abc import Collection

from fedpatch.shared.wire.messages import is_delta

EVERYWHERE = "fp32+zstd"
"""Each device supports this encoding, and it is lossless."""

ENCODING_HELP = "Encoding of models and updates; with secure = groups masked-u8 or masked-u16, of updates."

_FALLBACKS = (EVERYWHERE, "fp32", "fp16+zstd", "fp16")


def encoding_for(wanted: str, known: Collection[str]) -> str:
    """Return `wanted` if the device supports it, else the best other encoding that both sides support."""
    return next((encoding for encoding in (wanted, *_FALLBACKS) if encoding in known), EVERYWHERE)


def whole_model_encoding(wanted: str) -> str:
    """Return the encoding of a whole model: a lossless one if the run's updates are differences from the model."""
    return EVERYWHERE if is_delta(wanted) else wanted
