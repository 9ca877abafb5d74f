"""Loss and metric of the tasks that sort inputs into classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits, shape (n, classes), against class numbers, shape (n,)."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of the n examples, from 0 to 1, whose largest logit is that of their class."""
    return float((outputs.argmax(dim=1) == targets).float().mean().item())
