"""Static int8 quantisation of an ONNX model, calibrated with a device's own examples, and the time of one prediction.

Weights and activations become int8 between pairs of QuantizeLinear and DequantizeLinear, which onnxruntime fuses; weights have
a scale for each channel. onnxruntime.quantization needs the package onnx, which the export needs too, and no torch.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.shared.app.plugins import disable_ort_telemetry, import_optional
from fedpatch.shared.errors import ExportRefused
from fedpatch.shared.onnx.runtime import OnnxModel
from fedpatch.shared.tasks.model_metadata import INPUT
from fedpatch.shared.tensors.arrays import Array

MIN_EXAMPLES, MAX_EXAMPLES = 32, 256
"""Examples for the calibration: fewer show too little of the range of activations, more take time and change little."""

_BATCH = 32
_RUNS, _LONGEST_S = 50, 0.5


def quantise(model: bytes, inputs: Array) -> bytes:
    """Return a model in int8.

    Args:
        model: Bytes of an ONNX model with one input.
        inputs: Prepared examples, in the dtype of the model; up to MAX_EXAMPLES of them, evenly spread, are the calibration.

    Raises:
        ExportRefused: There are fewer than MIN_EXAMPLES, or an operator cannot be quantised.
    """
    if len(inputs) < MIN_EXAMPLES:
        raise ExportRefused(f"{len(inputs)} training examples are too few to calibrate it; it needs {MIN_EXAMPLES}")
    chosen = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), MAX_EXAMPLES)).astype(int)]
    batches = iter(np.split(chosen, range(_BATCH, len(chosen), _BATCH)))
    disable_ort_telemetry()
    tools: Any = import_optional(
        "onnxruntime.quantization",
        "onnxruntime makes int8 models and is not installed",
        "pip install 'fedpatch[agent]'",
    )

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            batch = next(batches, None)
            return None if batch is None else {INPUT: batch}

    with tempfile.TemporaryDirectory(prefix="fedpatch-int8-") as directory, _quiet():
        source, target = Path(directory) / "fp32.onnx", Path(directory) / "int8.onnx"
        source.write_bytes(model)
        try:
            tools.quantize_static(str(source), str(target), Reader(), per_channel=True)
            made = target.read_bytes()
        except Exception as error:  # its error classes are not public
            reason = " ".join(str(error).split())[:300]
            raise ExportRefused(f"the model cannot be quantised: {type(error).__name__}: {reason}") from error
    return made


def latency_s(model: OnnxModel, inputs: Array) -> float:
    """Return the median seconds of a prediction of one example, over up to 50 runs in half a second.

    Args:
        inputs: Examples; the first is used.
    """
    example = inputs[:1]
    taken: list[float] = []
    model.run(example)
    ends_at = time.perf_counter() + _LONGEST_S
    while len(taken) < _RUNS and (not taken or time.perf_counter() < ends_at):
        began_at = time.perf_counter()
        model.run(example)
        taken.append(time.perf_counter() - began_at)
    return statistics.median(taken)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log of onnxruntime.quantization, which always advises to pre-process the model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
