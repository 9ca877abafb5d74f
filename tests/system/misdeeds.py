"""Forbidden uploads of a device and the answers to them, for a run of the reference task with `affine` private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import zstandard

from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.system.oracle_task import HIDDEN, build_model
from tests.system.rogue import Misdeed, Update, Upload

MAX_MODEL_MIB = 1
SCHEMA = schema_of(build_model())
NOISE = np.random.default_rng(0).bytes(100_000)


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Misdeed:
    return lambda update: update.with_tensor(name, change(update.tensors[name].copy())).upload()


def _first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def put(array: np.ndarray) -> np.ndarray:
        array.flat[0] = value
        return array

    return put


def announced(**changes: object) -> Misdeed:
    """Return a misdeed: an update with a wrong manifest."""

    def misdeed(update: Update) -> Upload:
        upload = update.upload()
        return replace(upload, manifest=replace(upload.manifest, **changes))  # type: ignore[arg-type]

    return misdeed


def reported(**changes: object) -> Misdeed:
    """Return a misdeed: an update with a wrong report."""
    return lambda update: replace(update, report=replace(update.report, **changes)).upload()  # type: ignore[arg-type]


def _bomb(update: Update, announced_bytes: int) -> Upload:
    """Return an upload of a few bytes that unpack to as many zero bytes as a model may have."""
    return update.instead(zstandard.ZstdCompressor().compress(bytes(MAX_MODEL_MIB * 2**20)), announced_bytes)


MISDEEDS: dict[str, tuple[RefuseReason, Misdeed]] = {
    "a private value": (
        RefuseReason.PRIVATE_VALUE,
        lambda update: update.with_tensor("bn1.weight", np.ones(HIDDEN, np.float32)).upload(),
    ),
    "a moment of a private value": (
        RefuseReason.PRIVATE_VALUE,
        lambda update: update.with_tensor("bn2.bias:exp_avg", np.ones(HIDDEN, np.float32)).upload(),
    ),
    "a value that is not a number": (RefuseReason.NOT_FINITE, changed("fc1.weight", _first(np.nan))),
    "an infinite moment": (RefuseReason.NOT_FINITE, changed("fc1.weight:exp_avg", _first(-np.inf))),
    "a second moment below zero": (RefuseReason.OUT_OF_RANGE, changed("fc2.bias:exp_avg_sq", _first(-1.0))),
    "no examples": (RefuseReason.OUT_OF_RANGE, reported(num_examples=0)),
    "another global model as its base": (RefuseReason.WRONG_BASE, reported(base="0" * 64)),
    "another schema": (RefuseReason.SCHEMA_MISMATCH, announced(schema=SCHEMA.digest)),
    "another shape": (RefuseReason.SCHEMA_MISMATCH, changed("fc3.bias", lambda bias: bias[:-1])),
    "another dtype": (RefuseReason.SCHEMA_MISMATCH, changed("fc3.bias", lambda bias: bias.astype(np.float64))),
    "a tensor outside the schema": (
        RefuseReason.SCHEMA_MISMATCH,
        lambda update: update.with_tensor("fc9.weight", np.zeros(3, np.float32)).upload(),
    ),
    "a tensor too few": (RefuseReason.SCHEMA_MISMATCH, lambda update: update.without_tensor("fc1.bias").upload()),
    "bytes of something else": (RefuseReason.DAMAGED, lambda update: update.instead(NOISE[:5000], 9000)),
    "a part of an update": (
        RefuseReason.DAMAGED,
        lambda update: update.instead(update.upload().blob[:-100], update.upload().manifest.raw_bytes),
    ),
    "other bytes than announced": (RefuseReason.DAMAGED, announced(digest="0" * 64)),
    "more than it announces": (RefuseReason.DAMAGED, lambda update: _bomb(update, update.upload().manifest.raw_bytes)),
    "more than the agreed tensors take": (RefuseReason.TOO_LARGE, lambda update: _bomb(update, MAX_MODEL_MIB * 2**20)),
    "more than the model could be": (RefuseReason.TOO_LARGE, announced(raw_bytes=MAX_MODEL_MIB * 2**20 + 1)),
}
