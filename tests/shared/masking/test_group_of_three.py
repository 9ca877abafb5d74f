"""Known answers: a group of three from fixed random bytes. Another implementation must give the same bytes."""

from __future__ import annotations

import hashlib

import numpy as np

from fedpatch.shared.masking.masked_blob import add_masks
from fedpatch.shared.wire.features import MASKING_VERSION
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

    assert MASKING_VERSION == 3, (
        "other bytes need another version, or devices of both would form groups that do not open"
    )
    assert group.context.hex()[:16] == "0354f0b996a59cee"
    assert short(b"".join(group.shares[0].boxes) + group.shares[0].commitment) == "ef75978f31ccb5f6"
    assert masked[0].tobytes().hex() == "8f3270d731068eea"
    assert short(b"".join(reveals[0])) == "6c79c40d6520b4c1"
    assert [(short(mask.seed), mask.sign) for mask in opening.masks] == [
        ("14515af788038a36", -1),
        ("885a6152a644a60f", -1),
        ("e0c6b234f399f5bf", -1),
        ("0588675da5098152", -1),
    ]
    total = add_masks(masked[0] + masked[1], opening.masks)
    assert total.tolist() == (vectors[0] + vectors[1]).tolist()
