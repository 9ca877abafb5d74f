"""The processor that computes a study, for the origin of its results."""

from __future__ import annotations

from fedpatch.shared.app.provenance import processor_name
from fedpatch.shared.errors import UsageError


def name_processor(device: str) -> str:
    """Return the model name of the processor that computes on `device`: for cuda the GPU's. Raises UsageError without a GPU."""
    if device != "cuda":
        return processor_name()
    import torch

    if not torch.cuda.is_available():
        raise UsageError("device 'cuda' cannot be used here: torch finds no GPU; use --device cpu")
    return torch.cuda.get_device_name()
