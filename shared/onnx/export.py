"""A torch module as an ONNX model, for programs that have no torch.

The exporter is torch's own that traces one pass (`dynamo=False`): it is in every torch that fedpatch takes, needs the
package onnx and nothing else, and its graph has the fixed opset of shared.tasks.model_metadata. What a trace cannot see, such
as a branch on a value, shows when the outputs are compared (shared.onnx.runtime.require_parity), so nothing is handed out
uncompared.
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

# A trace of one example may take the number of examples for a constant.
_TRACED_EXAMPLES = 2


@dataclass(frozen=True)
class Exported:
    """The bytes of an ONNX model, and with which versions they were made."""

    model: bytes
    torch: str
    onnx: str


def export_onnx(module: nn.Module, example: Array) -> Exported:
    """`module` in evaluation mode, its parameters inside, for any number of examples.

    `example` holds one example or more along its first axis, in the dtype that the module takes. The module is left as it
    was, as is torch's random state. Raises ExportRefused where it cannot be exported, UsageError without the package onnx.
    """
    onnx = import_optional("onnx", "onnx writes ONNX models and is not there", "pip install 'fedpatch[agent]'")
    traced = torch.from_numpy(np.resize(example, (_TRACED_EXAMPLES, *example.shape[1:])))
    buffer = io.BytesIO()
    export: Any = torch.onnx.export  # whose annotations forget that a buffer will do
    try:
        with evaluating(module), torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this exporter is the older one, and what a trace may not see
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
    except Exception as error:  # whatever the user's module, torch's exporter or the checker makes of it
        reason = " ".join(str(error).split())[:300]
        raise ExportRefused(
            f"the task's model cannot be written as ONNX: {type(error).__name__}: {reason}; "
            "build it of operators that torch.onnx.export(dynamo=False) knows"
        ) from error
    return Exported(buffer.getvalue(), str(torch.__version__), str(onnx.__version__))


def torch_outputs(module: nn.Module, inputs: Array) -> Array:
    """What `module` gives for `inputs` in evaluation mode; it is left as it was."""
    with evaluating(module), torch.inference_mode():
        outputs: Array = module(torch.from_numpy(np.require(inputs, requirements=["C", "W"]))).numpy()
    return outputs
