"""Which examples a device trains on next.

The batches are consecutive slices of one endless stream, perm_0 ++ perm_1 ++ ..., where pass p over the n examples of
the device is `np.random.default_rng([stream_seed, p]).permutation(n)`. A round takes the next batches of the stream
and does not start it anew, so every batch is full and examples are used equally often, however few steps a round
takes. The place in the stream is a function of how many batches were taken before: nothing but that number has to be
remembered between rounds.

Where the data have grown (or shrunk) between two rounds, the place is found anew for the n that there is now: the stream
goes on in a fresh permutation of all n examples, somewhere in its middle. So the batches of a round are full and without
holes as before, no example comes twice within a pass, and every pass that begins from then on has the new examples too.
Only the one pass in which the number changed is cut short.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np


def batch_indices(
    num_examples: int, batch_size: int, first_batch: int, count: int, stream_seed: int
) -> Iterator[np.ndarray]:
    """Batches `first_batch` .. `first_batch + count - 1`, each int64 of shape (min(batch_size, num_examples),).

    Raises ValueError where there is no example or a batch would be empty.
    """
    if num_examples < 1 or batch_size < 1:
        raise ValueError(f"{num_examples} examples in batches of {batch_size}: both must be at least 1")
    size = min(batch_size, num_examples)
    number, offset = divmod(first_batch * size, num_examples)
    current = _one_pass(num_examples, number, stream_seed)
    for _ in range(count):
        if offset == num_examples:
            number, offset = number + 1, 0
            current = _one_pass(num_examples, number, stream_seed)
        batch = current[offset : offset + size]
        offset += size
        if offset > num_examples:
            number, offset = number + 1, offset - num_examples
            current = _one_pass(num_examples, number, stream_seed)
            batch = np.concatenate([batch, current[:offset]])
        yield batch


def stream_seed(seed: int, device_id: str) -> int:
    """Seed of a device's own stream: the first eight bytes of SHA-256 of "<seed>/<device_id>", big-endian."""
    return _seed_of(f"{seed}/{device_id}")


def update_seed(seed: int, device_id: str, first_batch: int) -> int:
    """Seed of what is drawn at random where the update of a round is encoded; `first_batch`: batches taken before it.

    The first eight bytes of SHA-256 of "<seed>/<device_id>/update/<first_batch>", big-endian: a round that is done
    again gives the same bytes.
    """
    return _seed_of(f"{seed}/{device_id}/update/{first_batch}")


def _seed_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _one_pass(num_examples: int, number: int, stream_seed: int) -> np.ndarray:
    return np.random.default_rng([stream_seed, number]).permutation(num_examples)
