"""Known answers: a group of three from fixed random bytes. Another implementation must give the same bytes."""

from __future__ import annotations

import hashlib

import numpy as np

from fedpatch.shared.masking.masked_blob import add_masks
from tests.support.masked_group import PlayedGroup

ALL = frozenset(range(3))


def test_messages_of_a_group_of_three_are_these_bytes():
    """Context, shares, a masked vector and a reveal; the third device is lost after sharing."""
    group = PlayedGroup.of(3, seed=7)
    group.share()
    group.distribute(ALL)
    vectors = [np.arange(8, dtype=np.uint8) * (index + 1) for index in range(3)]
    masked = [device.masked(vector) for device, vector in zip(group.devices, vectors, strict=True)]
    assert [[mask.sign for mask in device.rounds.masks()] for device in group.devices] == [
        [1, 1, 1],
        [1, -1, 1],
        [1, -1, -1],
    ]
    reported = frozenset({0, 1})
    reveals = group.reveals(reported, reported)
    opening = group.open(ALL, reported, reveals)

    def short(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:16]

    assert group.context.hex()[:16] == "c90c1d2dfb91936b"
    assert short(b"".join(group.shares[0].boxes) + group.shares[0].commitment) == "f92751ab91f6ab16"
    assert masked[0].tobytes().hex() == "78783c5ff2447f64"
    assert short(b"".join(reveals[0])) == "6c79c40d6520b4c1"
    assert [(short(mask.seed), mask.sign) for mask in opening.masks] == [
        ("e3d7db11a18a1d0b", -1),
        ("d78855ea5833a0fe", -1),
        ("b8a6a6d3e354256c", -1),
        ("e78c14ef873f2d9d", -1),
    ]
    total = add_masks(masked[0] + masked[1], opening.masks)
    assert total.tolist() == (vectors[0] + vectors[1]).tolist()
