"""Running an ONNX model with onnxruntime, and comparing its outputs with those of its torch module. It needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpatch.shared.app.plugins import disable_ort_telemetry, import_optional
from fedpatch.shared.errors import DataError, ExportRefused, StateError
from fedpatch.shared.tensors.arrays import Array

BATCH = 512
"""Examples in one call of the model, so that memory does not grow with their number."""

TOLERANCE = 1e-4
"""Largest allowed difference to torch's outputs, relative to the largest of them (or to 1 if all are smaller)."""

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


class OnnxModel:
    """An ONNX model in onnxruntime.

    Args:
        model: Bytes of the model.
        where: Name of the model for messages.
        threads: Threads for one call; they do not spin while idle.

    Attributes:
        input_shape: Shape of one example.
        input_dtype: NumPy's name of the input dtype.

    Raises:
        UsageError: onnxruntime is not installed.
        StateError: onnxruntime cannot run the bytes.
    """

    def __init__(self, model: bytes, where: str, *, threads: int = 1) -> None:
        disable_ort_telemetry()
        remedy = "pip install 'fedpatch[agent]'"
        runtime = import_optional("onnxruntime", "onnxruntime runs models and is not installed", remedy)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # an arena would keep memory from other programs between batches
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            (only,) = self._session.get_inputs()
            self.input_dtype = _DTYPES[only.type]
        except Exception as error:  # onnxruntime's error classes are not public
            reason = " ".join(str(error).split())[:300]
            raise StateError(f"{where}: cannot be run as an ONNX model: {reason}") from error
        self._input = str(only.name)
        self.input_shape: tuple[int, ...] = tuple(only.shape[1:])

    def run(self, inputs: Array) -> Array:
        """Return the outputs for `inputs`; examples are along the first axis of both. Raises DataError for other shapes."""
        batch = self._fitting(np.asarray(inputs))
        parts = [self._run(batch[start : start + BATCH]) for start in range(0, len(batch), BATCH)]
        return np.concatenate(parts)

    def _fitting(self, inputs: Array) -> Array:
        if inputs.shape[1:] != self.input_shape or not len(inputs):
            shown = ", ".join(map(str, ("n", *self.input_shape)))
            raise DataError(f"inputs have shape {inputs.shape}, the model takes ({shown}) with n at least 1")
        if not np.can_cast(inputs.dtype, self.input_dtype, "same_kind"):
            raise DataError(f"inputs are {inputs.dtype}, the model takes {self.input_dtype}; convert them first")
        return np.ascontiguousarray(inputs, dtype=self.input_dtype)

    def _run(self, batch: Array) -> Array:
        outputs: Array = self._session.run(None, {self._input: batch})[0]
        return outputs


def require_parity(model: OnnxModel, inputs: Array, expected: Array) -> float:
    """Compare an ONNX model with its torch module.

    Args:
        inputs: Examples, along the first axis.
        expected: Outputs of the torch module for `inputs`.

    Returns:
        The largest difference of an output, relative to the largest of `expected` (or to 1 if all are smaller).

    Raises:
        ExportRefused: The difference exceeds TOLERANCE, outputs have another shape or are not finite, or the model does not
            take one example alone.
    """
    outputs = model.run(inputs)
    if outputs.shape != expected.shape:
        raise ExportRefused(f"the ONNX model's outputs have shape {outputs.shape}, torch's {expected.shape}")
    if not (np.isfinite(outputs).all() and np.isfinite(expected).all()):
        raise ExportRefused("the model's outputs are not all finite")
    wide = expected.astype(np.float64)
    difference = float(np.abs(outputs - wide).max() / max(1.0, float(np.abs(wide).max())))
    if difference > TOLERANCE:
        raise ExportRefused(
            f"the ONNX model's outputs differ from torch's by {difference:.2g} of the largest, allowed is {TOLERANCE:g}; "
            "does the model decide by a value, or by the number of examples, what it computes?"
        )
    _require_alone(model, inputs[:1], outputs.shape[1:])
    return difference


def _require_alone(model: OnnxModel, example: Array, shape: tuple[int, ...]) -> None:
    """Raise ExportRefused unless a model gives one row of this shape for one example, as an application may ask for."""
    try:
        found = model.run(example).shape
        why = f"outputs have shape {found} instead of {(1, *shape)}"
    except Exception as error:  # onnxruntime's error classes are not public
        found, why = (), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if found != (1, *shape):
        raise ExportRefused(
            f"the ONNX model does not take one example alone ({why}); does it use squeeze() without an axis, or a fixed number "
            "of examples?"
        )
