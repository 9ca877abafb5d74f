"""The weighted sum of what clients trained, for vectors of which a client may hold only some rows.

Sums of a few clients are taken in the model's own precision, which is a third of the cost, and then folded into
float64. The clients and their order being given, the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from simulator.storage import Layout

FOLD_EVERY = 16


class Sums:
    """Running sums of `count` vectors of the layout (values, and moments if they travel).

    `idle(steps)` gives, for each vector, the rows of the first layer as they are after that many steps of a client whose
    data never use them; they stand in for the rows that clients left out.
    """

    def __init__(self, layout: Layout, count: int, idle: Callable[[int], list[Tensor]]) -> None:
        self._layout = layout
        self._idle = idle
        self.totals = torch.zeros((count, layout.public_size), dtype=torch.float64)
        self._recent = torch.zeros((count, layout.public_size), dtype=layout.dtype)
        self._pending = 0
        self._left_out: dict[int, Tensor] = {}  # by steps: for each row, the weight of the clients without it

    def add(self, vectors: list[Tensor], weight: float, steps: int, features: Tensor | None) -> None:
        """Add one client's vectors, of which the rows named by `features` are there (None: all)."""
        rows = self._layout.rows
        for recent, vector in zip(self._recent, vectors, strict=True):
            if rows is None or features is None:
                recent.add_(vector, alpha=weight)
                continue
            recent[: rows.start].add_(vector[: rows.start], alpha=weight)
            held = vector[rows.start :].view(-1, rows.shape[1])
            rows.stored(recent).index_add_(0, features, held, alpha=weight)
        if rows is not None and features is not None:
            left_out = self._left_out.setdefault(steps, torch.zeros(rows.shape[0], dtype=torch.float64))
            left_out += weight
            left_out[features] -= weight
        self._pending += 1
        if self._pending == FOLD_EVERY:
            self._fold()

    def result(self) -> Tensor:
        """All sums, shape (count, public_size), float64; begins anew after this."""
        self._fold()
        rows = self._layout.rows
        for steps, weight in self._left_out.items():
            assert rows is not None
            for total, idle in zip(self.totals, self._idle(steps), strict=True):
                rows.stored(total).addcmul_(idle.double(), weight[:, None])
        self._left_out.clear()
        done, self.totals = self.totals, torch.zeros_like(self.totals)
        return done

    def _fold(self) -> None:
        if self._pending:
            self.totals += self._recent
            self._recent.zero_()
            self._pending = 0
