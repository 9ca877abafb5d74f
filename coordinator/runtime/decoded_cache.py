"""Decoded updates of the open round, kept in memory up to a limit."""

from __future__ import annotations

from fedpatch.shared.tensors.arrays import Array

MOST_BYTES = 64 * 2**20
"""Limit of decoded updates in memory, in bytes."""


class DecodedCache:
    """The first decoded updates of one round that fit into `most_bytes`; the others are read from the disk again."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._left = self._most = most_bytes
        self._updates: dict[str, dict[str, Array]] = {}

    def keep(self, device: str, tensors: dict[str, Array]) -> None:
        """Keep the update of `device` if there is room, in place of its last one. The caller must not change it later."""
        self._left += _size(self._updates.pop(device, {}))
        if (size := _size(tensors)) <= self._left:
            self._left -= size
            self._updates[device] = tensors

    def of(self, device: str) -> dict[str, Array] | None:
        """Return the update of `device`, or None if it was not kept."""
        return self._updates.get(device)

    def clear(self) -> None:
        """Forget all updates."""
        self._updates.clear()
        self._left = self._most


def _size(tensors: dict[str, Array]) -> int:
    return sum(array.nbytes for array in tensors.values())
