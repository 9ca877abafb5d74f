"""The training process's part in a masked round: make the device's vector, and later put the masks on it.

The vector is on disk between the two, because the group's inbox may come after the training. Neither the unmasked vector nor
a mask ever reaches the process with the network: the agent sends seeds and signs, and gets a masked blob.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpatch.device_agent.job.training_messages import MaskCommand
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import StateError
from fedpatch.shared.masking.device_vector import MEASURE_OFFSET, make_vector, step_between
from fedpatch.shared.masking.masked_blob import MaskedUpdate, mask_blob, write_masked_blob
from fedpatch.shared.masking.private_vector import PrivateLayout, make_private_vector
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import Manifest, UpdateReport
from fedpatch.shared.wire.privacy_messages import PrivacyTerms

_NO_GROUP = bytes(32)
AFFINE_MOVE = 1.0
"""Bound of the move of scales and shifts in a masked round, in standard deviations of the normalised values.

On digits they move by 0.4. With all shifts moved by 4 in one direction units lose their gradients in one round.
"""
PATCH_MOVE, PATCH_SHARE = 4.0, 0.25
"""Bounds of the move of other private tensors. On digits all private tensors together move by 3.6."""

log = logging.getLogger("fedpatch.training")


def unmasked_blob(
    terms: SecureTerms,
    public: Schema,
    *,
    model: Tensors,
    update: Tensors,
    report: UpdateReport,
    metric: MetricTerms,
    seed: int,
) -> bytes:
    """Return the blob of a device's vector before masking.

    Args:
        public: Schema of the tensors that travel.
        model: The global model.
        update: Tensors after training.
        seed: Seed of the rounding.

    Raises:
        WireError: The terms do not fit the schema.
    """
    layout = VectorLayout(public, terms)
    _warn_of_cuts(report)
    elements = make_vector(
        layout,
        step=step_between(layout.specs, model, update),
        report=report,
        metric=metric,
        seed=seed,
    )
    return write_masked_blob(MaskedUpdate(_NO_GROUP, report.base, elements))


def bounded_patch(before: Tensors, after: Tensors, patch: Schema) -> dict[str, Array]:
    """Return the private tensors after a masked round, whose moves are shortened to a bound of their L2 norm.

    Scales and shifts move by AFFINE_MOVE together. All other tensors move by PATCH_SHARE of their norm or by PATCH_MOVE, the
    greater of both. A model and a learning rate for this purpose could push private values so far in one round that the device
    has no gradients any more: its later updates would be zero, and the sum of a group the update of the one device that was
    not in that round.

    Args:
        before: Private tensors before the round.
        after: Private tensors after training.
        patch: Their schema. Tensors that are not trained stay as they are.
    """
    trained = [spec for spec in patch.specs if spec.trainable and np.dtype(spec.dtype).kind == "f"]
    affine = [spec.name for spec in trained if spec.role == "affine"]
    others = [spec.name for spec in trained if spec.role != "affine"]
    length = math.sqrt(sum(float(np.square(before[name], dtype=np.float64).sum()) for name in others))
    most = max(PATCH_MOVE, PATCH_SHARE * length)
    return {**after, **_shortened(before, after, affine, AFFINE_MOVE), **_shortened(before, after, others, most)}


def _shortened(before: Tensors, after: Tensors, names: Sequence[str], most: float) -> dict[str, Array]:
    """Return tensors whose move together has at most this L2 norm."""
    moves = {name: after[name].astype(np.float64) - before[name] for name in names}
    norm = math.sqrt(sum(float(np.square(move).sum()) for move in moves.values()))
    if norm <= most:
        return {name: after[name] for name in names}
    log.warning("the patch would move by %.3g in one masked round; it moves by %.3g", norm, most)
    return {name: (before[name] + move * (most / norm)).astype(after[name].dtype) for name, move in moves.items()}


def _warn_of_cuts(report: UpdateReport) -> None:
    """Log measures beyond ±MEASURE_OFFSET, at which the vector cuts them off."""
    accuracies = (report.user_accuracy_before, report.user_accuracy_after, report.user_accuracy_independent)
    for name, values in (("training loss", (report.train_loss,)), ("user accuracy", accuracies)):
        beyond = next((value for value in values if value is not None and abs(value) > MEASURE_OFFSET), None)
        if beyond is not None:
            log.warning(
                "the %s of %g is beyond 2^31, where masked groups cut it off; scale it in the task", name, beyond
            )


def unmasked_private_blob(
    terms: PrivacyTerms, public: Schema, *, model: Tensors, update: Tensors, report: UpdateReport, seed: int
) -> bytes:
    """Return the blob of a device's vector before noise and masks, in a round with differential privacy.

    Args:
        terms: Terms of differential privacy, with Skellam noise.
        public: Schema of the tensors that travel.
        model: The global model.
        update: Tensors after training.
        report: Report of the training; only its model's digest travels.
        seed: Seed of the rounding.
    """
    layout = PrivateLayout(public, terms.clip, terms.steps)
    step = {spec.name: np.subtract(update[spec.name], model[spec.name], dtype=np.float64) for spec in layout.specs}
    return write_masked_blob(MaskedUpdate(_NO_GROUP, report.base, make_private_vector(layout, step, seed)))


def mask_update(command: MaskCommand) -> Manifest:
    """Read the vector of a round, mask it, and write the update.

    Args:
        command: Paths, masks and the digest that the vector must have.

    Returns:
        Manifest of the update.

    Raises:
        StateError: The vector is not what training wrote, or the disk refused.
        WireError: A mask cannot be derived.
    """
    source, target = Path(command.vector_path), Path(command.update_path)
    with refusals_of(source):
        blob = source.read_bytes()
    if hashlib.sha256(blob).hexdigest() != command.vector.digest:
        raise StateError(f"{source}: the trained vector is no longer what training wrote; it is dropped")
    bits = 8 if command.vector.encoding == "masked-u8" else 16
    masked = mask_blob(blob, command.context, command.masks, bits, command.noise)
    with refusals_of(target):
        write_atomic(target, masked)
    return describe(
        masked,
        chunk_bytes=command.vector.chunk_bytes,
        encoding=command.vector.encoding,
        raw_bytes=len(masked),
        schema=command.vector.schema,
    )
