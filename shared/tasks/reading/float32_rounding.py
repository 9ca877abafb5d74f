"""Large numbers whose last digits float32 does not hold: they are noted with the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT = 2.0**24
"""Beyond it float32 does not hold every integer."""


@dataclass
class Rounded:
    """Inputs whose last digits float32 does not hold: the first of them, as read and as kept, and their number."""

    value: float
    kept: float
    count: int = 0

    def words(self) -> str:
        """Return a note with the remedy."""
        return (
            f"values beyond {EXACT:,.0f} lose their last digits in float32: {self.count}, the first: {self.value:.15g} becomes "
            f"{self.kept:.15g}; if the digits matter, as in a time or a counter, subtract the first value before"
        )


def rounded_in(found: NDArray[Any], kept: NDArray[np.float32]) -> Rounded | None:
    """Return the large numbers of an array that float32 does not hold; None without any."""
    if found.dtype.kind not in "iuf" or not found.size or not (large := np.abs(kept) >= EXACT).any():
        return None
    differs = large & (kept.astype(np.float64) != found)
    if not differs.any():
        return None
    return Rounded(float(found[differs].flat[0]), float(kept[differs].flat[0]), int(differs.sum()))
