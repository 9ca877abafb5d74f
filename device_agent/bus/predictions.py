"""Predictions of the personal model for JSON from the bus. A payload is untrusted: if it does not fit, the answer is an error.

A payload is one example as a list, {"values": LIST}, or any JSON from which the task's `features(payload)` makes an example.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fedpatch.device_agent.models.inputs import cast_inputs
from fedpatch.shared.errors import DataError, FedpatchError
from fedpatch.shared.tasks.model_metadata import ModelMetadata
from fedpatch.shared.tasks.reading.array_values import numbers_of
from fedpatch.shared.tasks.reading.cell_values import RefusedValue
from fedpatch.shared.tensors.arrays import Array

MAX_PAYLOAD_BYTES = 2**20
_LONGEST = 300
Features = Callable[[Any], Array]


class Predictor(Protocol):
    """The part of PersonalModel that predictions need."""

    metadata: ModelMetadata

    def predict(self, inputs: Array, *, prepared: bool = False) -> Array:
        """Return outputs, examples first."""


def answer(model: Predictor, payload: bytes, features: Features | None = None) -> dict[str, Any]:
    """Return the answer to a payload as plain data.

    Args:
        payload: JSON of one example.
        features: The task's function from a payload to one raw example.

    Returns:
        `outputs`, with `class` where the task names classes, and `run` and `round` of the model; or `error`.
    """
    try:
        return _answer(model, example_of(payload, model.metadata, features))
    except FedpatchError as error:
        return {"error": str(error)[:_LONGEST]}


def example_of(payload: bytes, metadata: ModelMetadata, features: Features | None = None) -> Array:
    """Return the example of a payload, with a first axis of length 1.

    Args:
        payload: JSON of one example.
        metadata: Metadata of the model, with the shape of an example.
        features: The task's function from a payload to one raw example.

    Raises:
        DataError: The payload is not JSON, is too large, or does not fit the model.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise DataError(f"the payload has {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are taken")
    try:
        plain = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the payload is no JSON: {error}") from error
    shape = metadata.prepare.raw_shape if metadata.prepare is not None else metadata.input_shape
    made: Any = plain["values"] if isinstance(plain, dict) and "values" in plain and features is None else plain
    try:
        if features is not None:
            made = features(plain)
        example = cast_inputs(numbers_of(made), "float64" if metadata.prepare is not None else metadata.input_dtype)
    except RefusedValue as why:
        raise DataError(f"the payload, or what the task's features make of it, {why}") from None
    except Exception as error:  # `features` is the user's code, and the payload is arbitrary
        what = "the task's features of the payload" if features is not None else "the payload"
        raise DataError(f"{what}: {type(error).__name__}: {error}") from error
    if example.size != math.prod(shape):
        raise DataError(f"an example has {example.size} values; the model takes {math.prod(shape)}, of shape {shape}")
    if metadata.prepare is not None:
        example = example.astype(np.float32)
    return example.reshape(1, *shape)


def _answer(model: Predictor, example: Array) -> dict[str, Any]:
    try:
        outputs = model.predict(example)[0]
    except FedpatchError:
        raise
    except Exception as error:  # `prepare` and the model are the user's code
        raise DataError(f"the model failed: {type(error).__name__}: {error}") from error
    known = model.metadata
    plain = [float(value) if math.isfinite(value) else None for value in np.asarray(outputs, np.float64).ravel()]
    answered: dict[str, Any] = {"outputs": plain, "run": known.run, "round": known.round}
    if known.class_names and None not in plain and len(plain) == len(known.class_names):
        answered["class"] = known.class_names[int(np.argmax(outputs))]
    return answered
