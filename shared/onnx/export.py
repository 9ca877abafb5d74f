"""Export of a torch module as an ONNX model, for programs without torch.

The exporter is torch's own that traces one forward pass (`dynamo=False`). It is in every torch that fedpatch supports, needs
only the package onnx, and its graph has the fixed opset of shared.tasks.model_metadata. A trace cannot record a branch on a
value. So every exported model is compared with the module before use (shared.onnx.runtime.require_parity).
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedpatch.shared.app.plugins import import_optional
from fedpatch.shared.errors import ExportRefused
from fedpatch.shared.tasks.model_metadata import INPUT, OPSET, OUTPUT
from fedpatch.shared.tasks.torch_model import evaluating
from fedpatch.shared.tensors.arrays import Array

# A trace of one example may record the number of examples as a constant.
_TRACED_EXAMPLES = 2


@dataclass(frozen=True)
class Exported:
    """An ONNX model, and the versions of torch and onnx that made it."""

    model: bytes
    torch: str
    onnx: str


def export_onnx(module: nn.Module, example: Array) -> Exported:
    """Export `module` in evaluation mode, with its parameters, for any number of examples.

    `example` has at least one example along its first axis, in the module's input dtype. Module and torch's random state are
    unchanged afterwards. Raises ExportRefused if the module cannot be exported, UsageError without the package onnx.
    """
    onnx = import_optional("onnx", "onnx writes ONNX models and is not installed", "pip install 'fedpatch[agent]'")
    traced = torch.from_numpy(np.resize(example, (_TRACED_EXAMPLES, *example.shape[1:])))
    buffer = io.BytesIO()
    export: Any = torch.onnx.export  # its annotations lack that a buffer is allowed
    try:
        with evaluating(module), torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the older exporter, and of branches in the trace
            export(
                module,
                (traced,),
                buffer,
                dynamo=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_axes={INPUT: {0: "examples"}, OUTPUT: {0: "examples"}},
            )
        onnx.checker.check_model(buffer.getvalue(), full_check=True)
    except Exception as error:  # any error of the user's module, torch's exporter or the checker
        reason = " ".join(str(error).split())[:300]
        raise ExportRefused(
            f"the task's model cannot be written as ONNX: {type(error).__name__}: {reason}; "
            "build it of operators that torch.onnx.export(dynamo=False) knows"
        ) from error
    return Exported(buffer.getvalue(), str(torch.__version__), str(onnx.__version__))


def torch_outputs(module: nn.Module, inputs: Array) -> Array:
    """Return the outputs of `module` for `inputs` in evaluation mode. Module and inputs are unchanged afterwards."""
    with evaluating(module), torch.inference_mode():
        outputs: Array = module(torch.from_numpy(np.array(inputs, order="C"))).numpy()
    return outputs
