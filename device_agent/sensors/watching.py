"""Looks at the device's conditions in a thread of its own: a look may take seconds where a source hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from device_agent.facts import Facts


class Looks(Protocol):
    """What can be asked for facts (device_agent.conditions.observe.Observer)."""

    def observe(self) -> Facts:
        """The facts now; bounded in time, and never an exception."""


class Watcher:
    """`ask` leads to one look, whose facts go to `events` on this object's thread; asking again meanwhile changes nothing."""

    def __init__(self, observer: Looks, events: Callable[[Facts], None]) -> None:
        self._observer = observer
        self._events = events
        self._asked = threading.Event()
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    def ask(self) -> None:
        """Look once more, as soon as possible."""
        self._asked.set()

    def _watch(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self._events(self._observer.observe())
