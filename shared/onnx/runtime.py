"""An ONNX model that onnxruntime runs, and how far it agrees with the module that it was made of. No torch here."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpatch.shared.app.plugins import disable_ort_telemetry, import_optional
from fedpatch.shared.errors import DataError, ExportRefused, StateError
from fedpatch.shared.tensors.arrays import Array

BATCH = 512
"""Examples that pass through the model at a time, so that memory does not grow with their number."""

TOLERANCE = 1e-4
"""How far outputs may lie from torch's, relative to the largest of them (or to 1, where all are smaller)."""

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
    """A model ready to run; one thread unless told otherwise, and none that spins while there is nothing to do.

    `input_shape` is that of one example, `input_dtype` NumPy's name. Raises UsageError without onnxruntime, StateError,
    naming `where`, for bytes that are no model it can run.
    """

    def __init__(self, model: bytes, where: str, *, threads: int = 1) -> None:
        disable_ort_telemetry()
        remedy = "pip install 'fedpatch[agent]'"
        runtime = import_optional("onnxruntime", "onnxruntime runs models and is not there", remedy)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # what an arena keeps for the next batch is lost to all others
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            (only,) = self._session.get_inputs()
            self.input_dtype = _DTYPES[only.type]
        except Exception as error:  # onnxruntime has a dozen classes of its own, none of them public
            reason = " ".join(str(error).split())[:300]
            raise StateError(f"{where}: cannot be run as an ONNX model: {reason}") from error
        self._input = str(only.name)
        self.input_shape: tuple[int, ...] = tuple(only.shape[1:])

    def run(self, inputs: Array) -> Array:
        """Outputs for `inputs`, examples first in both. DataError for inputs of another shape or kind."""
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
    """The largest difference between the model's outputs and `expected`, torch's, relative to the largest of those (or to 1).

    Raises ExportRefused where it is beyond TOLERANCE, or the outputs have another shape.
    """
    found = model.run(inputs)
    if found.shape != expected.shape:
        raise ExportRefused(f"the ONNX model's outputs have shape {found.shape}, torch's {expected.shape}")
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        raise ExportRefused("the model's outputs are not all finite")
    wanted = expected.astype(np.float64)
    difference = float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max())))
    if difference > TOLERANCE:
        raise ExportRefused(
            f"the ONNX model's outputs differ from torch's by {difference:.2g} of the largest, allowed is {TOLERANCE:g}; "
            "does the model decide by a value, or by the number of examples, what it computes?"
        )
    return difference
