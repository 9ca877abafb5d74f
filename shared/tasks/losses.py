"""The mean of the losses of a training, which may be as large as a float."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_loss(losses: Sequence[float]) -> float:
    """Return the mean of finite losses.

    Args:
        losses: One value or more.

    Example:
        >>> mean_loss([1.0, 2.0])
        1.5
        >>> mean_loss([1.7e308, 1.7e308])
        1.7e+308
    """
    try:
        return math.fsum(losses) / len(losses)
    except OverflowError:  # the sum exceeds a float, and the rounded shares may too by their last bit
        mean = 2.0 * math.fsum(loss / 2.0 / len(losses) for loss in losses)
        return max(min(losses), min(mean, max(losses)))
