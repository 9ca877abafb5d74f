"""The public subset of a round: one of each few consecutive values of a tensor, drawn by the round's seed.

All devices of a round send the same subset, so the global model changes only there, and its delta to devices needs no other
values. A value waits `keep` rounds on average (Konecny et al. 2016, random mask).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from fedpatch.shared.tensors.arrays import Array

SEED_BYTES = 8
WAITING_SHARE = 0.5
"""Share of a step that is kept for each round in which its value waits for its turn in a public subset.

While a value waits, a device trains mostly the same step in each round, because the global value has not moved. The sum of
these steps would be several times too long: where devices reach their own optimum in each round, the error of a quarter's
subset grew by a factor of 10^9 in 120 rounds. With a half, the sum stays below two steps, and the error never grows.
"""


def round_seed(run_seed: int, round_number: int) -> bytes:
    """Return the seed of a round's subsets, SEED_BYTES bytes: the same on every device of the round, and on the server.

    Args:
        round_number: Number of the round, from 1.
    """
    return hashlib.sha256(f"subset {run_seed} {round_number}".encode()).digest()[:SEED_BYTES]


@lru_cache(maxsize=16)
def subset_of(seed: bytes, name: str, size: int, keep: int) -> Array:
    """Return the places of the subset's values in a flat tensor, in ascending order.

    Of each `keep` consecutive values one is drawn, by SHAKE-128 of the seed and the name. An incomplete last group may
    have none.

    Args:
        seed: Seed of the round.
        name: Name of the tensor.
        size: Number of its values.
        keep: One of so many values is drawn, 1 to 256.

    Example:
        >>> subset_of(bytes(8), "fc.weight", 12, 4).tolist()
        [1, 6, 10]
    """
    rows = -(-size // keep)
    stream = hashlib.shake_128(seed + name.encode()).digest(rows)
    places = np.arange(rows) * keep + np.frombuffer(stream, np.uint8) % keep
    places = places[places < size]
    places.flags.writeable = False  # the next caller gets the same array
    return places
