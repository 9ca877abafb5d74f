"""The int8 model beside a personal model, if it is smaller, and no worse than the owner's margin on the validation data."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from fedpatch.shared.errors import ExportRefused, FedpatchError
from fedpatch.shared.onnx.quantisation import MAX_EXAMPLES, latency_s, quantise
from fedpatch.shared.onnx.runtime import OnnxModel
from fedpatch.shared.tasks.model_metadata import INT8_FILE, MODEL_FILE, Int8Model, ModelMetadata
from fedpatch.shared.tensors.arrays import Array

log = logging.getLogger("fedpatch.models")

Measure = Callable[[OnnxModel], float | None]


def with_int8(
    model: bytes,
    metadata: ModelMetadata,
    *,
    training_inputs: Array,
    test_inputs: Array,
    margin: float,
    validate: Measure,
    user_accuracy: Callable[[Array], float],
) -> tuple[bytes, Int8Model | None]:
    """Quantise a personal model. On any error log the reason in one line and return no model: then only fp32 is used.

    Args:
        model: The personal model in fp32.
        metadata: Its metadata, with its validation accuracy.
        training_inputs: The device's prepared training inputs, for the calibration.
        test_inputs: Its prepared test inputs.
        margin: How much worse the int8 model may be on validation data, in the task's metric.
        validate: Returns the metric of a model on validation data.
        user_accuracy: Returns the metric of a model's outputs on test data.

    Returns:
        The int8 model and its description; b"" and None without one.
    """
    try:
        made = _require_smaller(quantise(model, training_inputs), model)
        int8 = OnnxModel(made, INT8_FILE)
        found = _require_no_worse(validate(int8), metadata, margin)
        described = Int8Model(
            sha256=hashlib.sha256(made).hexdigest(),
            size_bytes=len(made),
            user_accuracy=user_accuracy(int8.run(test_inputs)),
            validation_accuracy=found,
            latency_s=latency_s(int8, test_inputs),
            fp32_latency_s=latency_s(OnnxModel(model, MODEL_FILE), test_inputs),
            calibration_examples=min(len(training_inputs), MAX_EXAMPLES),
        )
    except FedpatchError as error:
        log.warning("personal model: round %d has no int8 model: %s", metadata.round, error)
    except Exception as error:  # an error of the user's metric or of onnxruntime: the fp32 model is still published
        log.warning("personal model: round %d has no int8 model: %s: %s", metadata.round, type(error).__name__, error)
    else:
        return made, described
    return b"", None


def _require_smaller(made: bytes, model: bytes) -> bytes:
    """Return an int8 model; ExportRefused if it is not smaller than the model."""
    if len(made) >= len(model):
        raise ExportRefused(f"it is no smaller in int8 ({len(made)} bytes instead of {len(model)})")
    return made


def _require_no_worse(found: float | None, metadata: ModelMetadata, margin: float) -> float:
    """Return the validation accuracy of an int8 model; ExportRefused if it is worse than the margin, or unknown."""
    present = metadata.validation_accuracy
    if not metadata.validation_examples or present is None:
        raise ExportRefused("there are no validation data to compare it on")
    if found is None:
        raise ExportRefused(f"its {metadata.metric} on validation data is no number")
    loss = (present - found) * (1 if metadata.metric_goal == "max" else -1)
    if loss > margin:
        raise ExportRefused(
            f"its {metadata.metric} {found:.4g} is worse than {present:.4g} in fp32 by more than the margin of {margin:g} "
            f"(on {metadata.validation_examples} validation examples)"
        )
    return found
