"""The filter in the link's thread: it drops messages beyond a device's limits before they enter the event queue.

The link's thread requests admission; the coordinator's thread reports known devices and grants. One lock protects both.
rate_limiter has the limits.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from fedpatch.coordinator.guard.rate_limiter import Dropped, RateLimiter
from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES
from fedpatch.shared.wire.messages import MAX_CHUNKS, Envelope, Grant, WorkRequest
from fedpatch.shared.wire.topics import ParsedTopic

MAX_WAITING_BYTES = 128 * 2**20
"""Greatest size of the waiting messages. Further messages are dropped; devices repeat important messages."""


class IngressFilter:
    """Admits or drops received messages, by device (`RateLimiter`) and by the size of the queue.

    A grant admits the chunks of the run's largest update. `expect` sets that size before the first grant.

    Args:
        max_devices: Greatest number of devices that the filter remembers.
    """

    def __init__(self, max_devices: int) -> None:
        self._limiter = RateLimiter(max_devices)
        self._lock = threading.Lock()
        self._largest_bytes = 0
        # Bytes that entered the queue (written by the link's thread) and left it (written by the coordinator's thread).
        self._entered = self._taken = 0

    def expect(self, largest_update_bytes: int, chunk_bytes: int) -> None:
        """Set the size of the run's largest update, which travels in chunks of at most `chunk_bytes`."""
        chunks = min(MAX_CHUNKS, -(-largest_update_bytes // chunk_bytes))
        self._largest_bytes = largest_update_bytes + chunks * CHUNK_OVERHEAD_BYTES

    def admit(self, topic: ParsedTopic, size_bytes: int) -> bool:
        """Return whether a message may enter the event queue. Called in the link's thread."""
        full = self._entered - self._taken + size_bytes > MAX_WAITING_BYTES
        with self._lock:
            if full:
                self._limiter.dropped["", "over_limit"] += 1
                return False
            if not self._limiter.admit(topic.kind, topic.device, size_bytes, time.monotonic()):
                return False
        self._entered += size_bytes
        return True

    def took(self, size_bytes: int) -> None:
        """Note that a message has left the event queue."""
        self._taken += size_bytes

    def sends(self, device: str, envelope: Envelope) -> None:
        """Note a message that the coordinator is about to send: a work request or a grant raises the device's limits."""
        with self._lock:
            match envelope.body:
                case WorkRequest():
                    self._limiter.asked(device, envelope.run, envelope.round, time.monotonic())
                case Grant():
                    self._limiter.granted(device, self._largest_bytes)

    def knows(self, device: str) -> None:
        """Give the device its own limits, as a device of the fleet."""
        with self._lock:
            self._limiter.know(device, time.monotonic())

    def forgets(self, device: str) -> None:
        """Treat the device as unknown again."""
        with self._lock:
            self._limiter.forget(device)

    def take_dropped(self) -> Counter[tuple[str, Dropped]]:
        """Return and reset the number of dropped messages by device and reason."""
        with self._lock:
            return self._limiter.take_dropped()
