"""Files of committed updates."""

from __future__ import annotations

import hashlib

import pytest

from fedpatch.coordinator.storage.update_files import (
    drop_round,
    drop_updates,
    kept_devices,
    kept_rounds,
    load_update,
    store_update,
    sync_updates,
)
from fedpatch.shared.errors import StateError, UsageError


@pytest.mark.parametrize("blob", [b"", b"one", bytes(range(256)) * 40_000], ids=["empty", "small", "10 MB"])
def test_update_is_kept_until_its_round_is_dropped(blobs, blob):
    store_update(blobs, 1, "pi-1", b"before")
    store_update(blobs, 1, "pi-1", blob)
    store_update(blobs, 1, "pi-2", b"two", hashlib.sha256(b"two").hexdigest())
    store_update(blobs, 2, "pi-1", b"three")
    sync_updates(blobs, 1)
    assert (kept_rounds(blobs), kept_devices(blobs, 1)) == ([1, 2], ["pi-1", "pi-2"])
    assert [load_update(blobs, 1, "pi-1"), load_update(blobs, 1, "pi-2")] == [blob, b"two"]
    drop_updates(blobs, [(1, "pi-2"), (7, "pi-2")])
    assert kept_devices(blobs, 1) == ["pi-1"]
    drop_round(blobs, 1)
    drop_round(blobs, 1)
    assert (kept_devices(blobs, 1), kept_devices(blobs, 2)) == ([], ["pi-1"])
    assert load_update(blobs, 2, "pi-1") == b"three"
    with pytest.raises(StateError, match=r"pi-1.fp: is not there"):
        load_update(blobs, 1, "pi-1")


def test_damaged_update_raises(blobs):
    key = store_update(blobs, 1, "pi-1", bytes(100))
    data = bytearray(blobs.get(key) or b"")
    data[-10] ^= 0x10
    blobs.put(key, bytes(data))
    with pytest.raises(StateError, match=r"pi-1.fp: is damaged"):
        load_update(blobs, 1, "pi-1")


@pytest.mark.parametrize("device", ["../pi", "pi/1", "", ".", "Pi", "pi\n"])
def test_device_name_outside_the_topic_alphabet_is_refused(blobs, device):
    with pytest.raises(UsageError, match=r"device name .+ is not possible"):
        store_update(blobs, 1, device, b"x")
    assert blobs.list() == []
