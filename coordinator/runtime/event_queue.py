"""What waits for the coordinator's thread, and the time by which it is judged: that at which it came."""

from __future__ import annotations

import time
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
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[float, Event]] = SimpleQueue()
        self.now = time.monotonic()

    def put(self, event: Event) -> None:
        """One more."""
        self._queue.put((time.monotonic(), event))

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
        return self.now if self.waiting() else time.monotonic()

    def advance_to(self, moment: float) -> None:
        """It is `moment`, unless it is later already."""
        self.now = max(self.now, moment)

    def now_is_present(self) -> float:
        """It is the present, which is returned: for what begins only now, so that nothing that waits can be of it."""
        self.advance_to(time.monotonic())
        return self.now
