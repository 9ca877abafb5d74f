"""Attacks that change the steps from the global model in the bytes of delta encodings (docs/reference/protocol.md)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict

import msgpack
import numpy as np
import zstandard

from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.attacks.attack import Attack, part
from tests.attacks.by_updates import misbehaving
from tests.system.rogue import Misdeed, Update, Upload

WEIGHT, FIRST, SECOND = "fc1.weight", "fc1.weight:exp_avg", "fc1.weight:exp_avg_sq"
Form = tuple[str, bytes]
"""The name of a rule, and the values in the bytes of this rule."""


def _step(name: str, change: Callable[[Form], Form]) -> Misdeed:
    """An update in steps; the step of tensor `name` is changed."""

    def misdeed(update: Update) -> Upload:
        encoding = update.request.encoding
        packed = pack(update.tensors, update.schema, asdict(update.report), encoding, base=update.tensors)
        raw = zstandard.ZstdDecompressor().decompress(packed.blob, max_output_size=packed.raw_bytes)
        document = msgpack.unpackb(raw)
        (entry,) = [entry for entry in document["tensors"] if entry[0] == name]
        entry[1], entry[3] = change((entry[1], entry[3]))
        raw = msgpack.packb(document)
        return update.instead(zstandard.ZstdCompressor().compress(raw), len(raw))

    return misdeed


def _scaled(scale: float) -> Callable[[Form], Form]:
    """All codes 1, and all scales the same."""

    def change(form: Form) -> Form:
        word, values = form
        scales = next(count for count in range(1, len(values)) if len(values) - 4 * count <= 1024 * count)
        return word, struct.pack("<f", scale) * scales + b"\1" * (len(values) - 4 * scales)

    return change


def _topped(top: int) -> Callable[[Form], Form]:
    """Every byte is 100. With such a high `top` the base's codes are 0 or 1, so all levels are about twenty octaves lower."""
    return lambda form: (form[0], struct.pack("<h", top) + b"\x64" * (len(form[1]) - 2))


def _row(name: str, does: str, reason: RefuseReason, misdeed: Misdeed) -> Attack:
    return part(f"step: {name}", does, f"refused: `{reason}`", misbehaving(reason, misdeed))


STEP_ATTACKS = (
    _row(
        "a scale that is no number", "every value becomes NaN", RefuseReason.NOT_FINITE, _step(WEIGHT, _scaled(np.nan))
    ),
    _row("an infinite scale", "every value becomes infinite", RefuseReason.NOT_FINITE, _step(WEIGHT, _scaled(np.inf))),
    _row(
        "first moments beyond the second",
        "a scale that would make the next steps of all devices long",
        RefuseReason.OUT_OF_RANGE,
        _step(FIRST, _scaled(1e6)),
    ),
    _row(
        "a level of 2^4000",
        "second moments that become infinite",
        RefuseReason.NOT_FINITE,
        _step(SECOND, _topped(32767)),
    ),
    _row(
        "a code too few",
        "fewer codes than values",
        RefuseReason.DAMAGED,
        _step(WEIGHT, lambda form: (form[0], form[1][:-1])),
    ),
    _row("no scale", "nothing where a scale belongs", RefuseReason.DAMAGED, _step(WEIGHT, lambda form: (form[0], b""))),
    _row(
        "another encoding's rule",
        "two bytes a value where one was agreed on",
        RefuseReason.SCHEMA_MISMATCH,
        _step(WEIGHT, lambda form: ("delta-bf16", form[1])),
    ),
    _row(
        "a rule that is none",
        "a word nobody knows",
        RefuseReason.SCHEMA_MISMATCH,
        _step(WEIGHT, lambda form: ("\x1b[2J", form[1])),
    ),
    _row(
        "a step that is not to be one",
        "the rule of weights for a first moment",
        RefuseReason.SCHEMA_MISMATCH,
        _step(FIRST, lambda form: ("delta-int8", form[1])),
    ),
)
