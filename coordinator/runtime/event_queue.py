"""The events of the coordinator's process, and their queue: each is handled with the time of its arrival."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue

from fedpatch.shared.app.signals import forward_signals
from fedpatch.shared.app.store_waits import StoreWaits
from fedpatch.shared.mqtt.client import Connected, Disconnected
from fedpatch.shared.wire.topics import ParsedTopic


@dataclass(frozen=True)
class AdmittedMessage:
    """A message of a device, within its limits.

    Attributes:
        topic: The parts of its topic.
        topic_name: The topic as it was received.
        payload: Its bytes, of any content.
    """

    topic: ParsedTopic
    topic_name: str
    payload: bytes


class UpdateWritten:
    """One more update is checked and written, or refused; its completion event is in the UpdateStore."""


class Interrupt:
    """The operator pressed Ctrl-C or sent SIGTERM."""


class Deposed:
    """Another coordinator leads the fleet."""


Event = AdmittedMessage | Connected | Disconnected | UpdateWritten | Interrupt | Deposed


class EventQueue:
    """Events in the order of their arrival. Any thread may put events; one thread gets them.

    `now` is the run's time, in seconds of the monotonic clock. While events wait, `now` is behind the clock, so that no device
    is late because the coordinator was busy. It never decreases.

    Args:
        clock: Returns monotonic seconds.
        queue: Holds the events.

    Attributes:
        ending: The requests to stores that wait. It is set once an event that ends the run is put: from then on no thread waits
            long for a store or a database.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, queue: SimpleQueue[tuple[float, Event]] | None = None
    ) -> None:
        self.clock = clock
        self._queue: SimpleQueue[tuple[float, Event]] = SimpleQueue() if queue is None else queue
        self.now = clock()
        self.ending = StoreWaits()

    def put(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Interrupt | Deposed):
            self.ending.set()
        self._queue.put((self.clock(), event))

    def get(self, timeout: float = 0.0) -> Event:
        """Return the next event and set `now` to its arrival; raise queue.Empty after `timeout` seconds without one."""
        came_at, event = self._queue.get(timeout=timeout)
        self.advance_to(came_at)
        return event

    def waiting(self) -> int:
        """Return the number of waiting events."""
        return self._queue.qsize()

    def processed_until(self) -> float:
        """Return the time up to which all events are taken."""
        return self.now if self.waiting() else self.clock()

    def advance_to(self, moment: float) -> None:
        """Set `now` to `moment`, unless it is later already."""
        self.now = max(self.now, moment)

    def now_is_present(self) -> float:
        """Set `now` to the present and return it. Used for work that starts now: waiting events are older than this work."""
        self.advance_to(self.clock())
        return self.now


def interrupts_into(queue: EventQueue) -> AbstractContextManager[None]:
    """Put SIGINT and SIGTERM as events into `queue`, if called in the main thread; Python allows this in no other thread."""
    if threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return forward_signals(lambda _: queue.put(Interrupt()))
