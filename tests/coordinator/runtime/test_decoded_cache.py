"""Updates kept in memory as they were decoded: never more bytes than may be kept, and nothing that depends on them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.runtime.update_store import DecodedCache

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=12)


def update(size: int) -> dict[str, np.ndarray]:
    return {"w": np.zeros(size, np.int8)}


@given(STEPS)
def test_cache_keeps_the_last_update_of_a_device_within_its_limit(steps):
    decoded, given_last = DecodedCache(20), {}
    for device, size in steps:
        given_last[device] = update(size)
        decoded.keep(device, given_last[device])
        kept = {name: found for name in given_last if (found := decoded.of(name)) is not None}
        assert all(found is given_last[name] for name, found in kept.items())
        assert sum(found["w"].nbytes for found in kept.values()) <= 20


def test_clear_makes_room():
    decoded = DecodedCache(10)
    decoded.keep("a", update(10))
    decoded.keep("b", update(1))
    assert decoded.of("b") is None
    decoded.clear()
    decoded.keep("b", update(10))
    assert decoded.of("a") is None
    assert decoded.of("b") is not None
