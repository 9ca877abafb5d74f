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

    assert group.context.hex()[:16] == "c3f3583028d96aaa"
    assert short(b"".join(group.shares[0].boxes) + group.shares[0].commitment) == "03256b934a794ff6"
    assert masked[0].tobytes().hex() == "e6d33068c1534434"
    assert short(b"".join(reveals[0])) == "6c79c40d6520b4c1"
    assert [(short(mask.seed), mask.sign) for mask in opening.masks] == [
        ("bf515e17959f1071", -1),
        ("197a11273058c43b", -1),
        ("d5bd32cf5689d0ba", -1),
        ("185ecd418b10b51f", -1),
    ]
    total = add_masks(masked[0] + masked[1], opening.masks)
    assert total.tolist() == (vectors[0] + vectors[1]).tolist()
