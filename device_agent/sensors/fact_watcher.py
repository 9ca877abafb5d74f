"""A thread that collects the facts, since a source that hangs may delay them by seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from fedpatch.device_agent.sensors.device_facts import Facts


class Looks(Protocol):
    """A source of facts (device_agent.sensors.collect.FactCollector)."""

    def observe(self) -> Facts:
        """Return the facts now, in limited time; never raises."""


class FactWatcher:
    """`ask` starts one observation, whose facts go to `events` on this object's thread; repeated calls before it count once."""

    def __init__(self, observer: Looks, events: Callable[[Facts], None]) -> None:
        self._observer = observer
        self._events = events
        self._asked = threading.Event()
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    def ask(self) -> None:
        """Observe once more, as soon as possible."""
        self._asked.set()

    def _watch(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self._events(self._observer.observe())
