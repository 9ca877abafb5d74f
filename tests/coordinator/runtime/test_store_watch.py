"""The thread that reports silent stores while the run's own thread waits."""

from __future__ import annotations

import queue

import pytest

from fedpatch.coordinator.runtime import store_watch
from fedpatch.shared.app.store_waits import BLOBS, StoreWaits


def test_words_are_published_while_a_store_is_silent_and_cleared_when_it_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_watch, "LOOK_S", 0.01)
    seconds, published = [0.0], queue.SimpleQueue[str]()
    waits = StoreWaits(lambda: seconds[-1])
    with store_watch.watching(waits, published.put):
        with waits.request(BLOBS, "s3://fleet", 90.0):
            seconds.append(11.0)
            assert published.get(timeout=60.0).startswith("s3://fleet has not answered for")
        while words := published.get(timeout=60.0):
            assert words.startswith("s3://fleet")
    assert published.empty()
