"""What waits for the coordinator's thread, and the time by which it is judged: that at which it came."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue

from fedpatch.coordinator.runtime.update_store import UpdateWritten
from fedpatch.shared.mqtt.client import LinkEvent


class Interrupt:
    """Somebody pressed Ctrl-C or sent SIGTERM."""


Event = LinkEvent | Interrupt | UpdateWritten


class EventQueue:
    """Events in the order in which they came: any thread may put them; one thread gets them.

    `now` is the run's time, in seconds of the monotonic clock. It is behind while events wait, so that no device is late
    because the coordinator was busy, or was flooded by another; and it never goes back.

    Args:
        clock: Returns monotonic seconds.
        queue: Holds the events.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, queue: SimpleQueue[tuple[float, Event]] | None = None
    ) -> None:
        self.clock = clock
        self._queue: SimpleQueue[tuple[float, Event]] = SimpleQueue() if queue is None else queue
        self.now = clock()

    def put(self, event: Event) -> None:
        """One more."""
        self._queue.put((self.clock(), event))

    def get(self, timeout: float = 0.0) -> Event:
        """The next one, whose arrival is `now`. Raises queue.Empty where none comes within `timeout` seconds."""
        came_at, event = self._queue.get(timeout=timeout)
        self.advance_to(came_at)
        return event

    def waiting(self) -> int:
        """How many are still to be taken."""
        return self._queue.qsize()

    def processed_until(self) -> float:
        """Up to when all that has come is taken."""
        return self.now if self.waiting() else self.clock()

    def advance_to(self, moment: float) -> None:
        """It is `moment`, unless it is later already."""
        self.now = max(self.now, moment)

    def now_is_present(self) -> float:
        """It is the present, which is returned: for what begins only now, so that nothing that waits can be of it."""
        self.advance_to(self.clock())
        return self.now
