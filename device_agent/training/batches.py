"""The examples that a device trains on next.

The batches are consecutive slices of one endless stream, perm_0 ++ perm_1 ++ ..., where pass p over the n examples of
the device is `np.random.default_rng([stream_seed, p]).permutation(n)`. A round takes the next batches of the stream. So every
batch is full, and examples are used equally often, for any number of steps in a round. The place in the stream follows from
the number of batches that were taken before, so that only this number is stored between rounds.

Under masks the examples of a round are those of the same stream, but the part of each pass that falls into the round is
shuffled by a secret of the attempt: a repeated round does not repeat its batches.

If the number of examples changes between two rounds, the place is computed again for the new n, in a fresh permutation of
all n examples. The batches of the round are full as before, no example comes twice within a pass, and each later pass has
the new examples. Only the pass in which the number changed is cut short.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np


def batch_indices(
    num_examples: int, batch_size: int, first_batch: int, count: int, stream_seed: int, attempt: bytes = b""
) -> Iterator[np.ndarray]:
    """Return the indices of the examples of some batches.

    Args:
        num_examples: Number of examples, n.
        first_batch: Number of batches taken before.
        count: Number of batches.
        stream_seed: Seed of the device's stream (`stream_seed`).
        attempt: Secret of the attempt at a masked round; empty for the order of the stream.

    Returns:
        The batches, each int64 of shape (min(batch_size, num_examples),).

    Raises:
        ValueError: There is no example, or a batch would be empty.
    """
    if num_examples < 1 or batch_size < 1:
        raise ValueError(f"{num_examples} examples in batches of {batch_size}: both must be at least 1")
    size = min(batch_size, num_examples)
    number, offset = divmod(first_batch * size, num_examples)
    left, waiting = count * size, np.empty(0, np.int64)
    while left:
        part = _one_pass(num_examples, number, stream_seed)[offset : offset + left]
        if attempt:
            part = np.random.default_rng([attempt_seed(stream_seed, attempt), number]).permutation(part)
        left, number, offset = left - len(part), number + 1, 0
        waiting = np.concatenate([waiting, part])
        whole = len(waiting) // size * size
        yield from waiting[:whole].reshape(-1, size)
        waiting = waiting[whole:]


def stream_seed(seed: int, device_id: str) -> int:
    """Return the seed of a device's stream: the first eight bytes of SHA-256 of "<seed>/<device_id>", big-endian."""
    return _seed_of(f"{seed}/{device_id}")


def update_seed(seed: int, device_id: str, first_batch: int) -> int:
    """Return the seed of the rounding in the encoding of an update; a repeated round gives the same bytes.

    It is the first eight bytes of SHA-256 of "<seed>/<device_id>/update/<first_batch>", big-endian.

    Args:
        seed: Seed of the plan.
        first_batch: Number of batches taken before the round.
    """
    return _seed_of(f"{seed}/{device_id}/update/{first_batch}")


def attempt_seed(seed: int, attempt: bytes) -> int:
    """Return a seed that depends on a secret of the attempt at a masked round; `seed` itself without one."""
    return _seed_of(f"{seed}/attempt/{attempt.hex()}") if attempt else seed


def _seed_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _one_pass(num_examples: int, number: int, stream_seed: int) -> np.ndarray:
    return np.random.default_rng([stream_seed, number]).permutation(num_examples)
