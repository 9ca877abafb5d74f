"""Updates of the open round as they were decoded, so that the fold need not read and decode them once more.

Only a convenience: each of them lies on the disk too, and is read from there where it is not here. What is kept takes a bounded
number of bytes, however many devices there are.
"""

from __future__ import annotations

from shared.tensors import Array

MOST_BYTES = 64 * 2**20


class Decoded:
    """The first updates of one round that find room in `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._left = self._most = most_bytes
        self._updates: dict[str, dict[str, Array]] = {}

    def keep(self, device: str, tensors: dict[str, Array]) -> None:
        """The update of `device`, in place of one that is here; it must not be changed any more."""
        self._left += _size(self._updates.pop(device, {}))
        if (size := _size(tensors)) <= self._left:
            self._left -= size
            self._updates[device] = tensors

    def of(self, device: str) -> dict[str, Array] | None:
        """None where it is not here."""
        return self._updates.get(device)

    def clear(self) -> None:
        """The round is over."""
        self._updates.clear()
        self._left = self._most


def _size(tensors: dict[str, Array]) -> int:
    return sum(array.nbytes for array in tensors.values())
