"""Loss and metric of the bundled classification tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits, shape (n, classes), and class numbers, shape (n,)."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def accuracy(outputs: Tensor | np.ndarray, targets: Tensor | np.ndarray) -> float:
    """Return the share of the n examples, 0 to 1, whose largest logit is that of their class; of tensors or arrays."""
    if isinstance(outputs, np.ndarray):
        right = np.count_nonzero(outputs.argmax(axis=1) == np.asarray(targets))
        return float(np.float32(right) / np.float32(len(outputs)))  # the same bits as torch's mean
    hits: Tensor = outputs.argmax(dim=1) == targets  # type: ignore[assignment]
    return float(hits.float().mean().item())
