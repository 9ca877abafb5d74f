"""Collecting facts in a separate thread."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.sensors.fact_watcher import FactWatcher
from tests.device_agent.owners import WELL


class Slow:
    """A device whose facts take a while to collect."""

    def __init__(self) -> None:
        self.looked = 0
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def observe(self) -> Facts:
        self.looked += 1
        self.begun.release()
        assert self.go_on.acquire(timeout=60.0)
        return WELL


def test_requests_during_a_collection_share_one_further_collection():
    """The caller never waits; a collection that began before the request may have old facts."""
    slow, events = Slow(), SimpleQueue[Facts]()
    watcher = FactWatcher(slow, events.put)
    watcher.ask()
    assert slow.begun.acquire(timeout=60.0)
    for _ in range(5):
        watcher.ask()
    slow.go_on.release()
    assert slow.begun.acquire(timeout=60.0)
    slow.go_on.release()
    assert [events.get(timeout=60.0), events.get(timeout=60.0)] == [WELL] * 2
    assert (slow.looked, events.empty()) == (2, True)
