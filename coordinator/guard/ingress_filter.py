"""The gate in the link's thread: what is over a device's limits is dropped before it takes a place in the inbox.

The link's thread lets messages in, the coordinator's tells who is known and what was granted: one lock between them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from fedpatch.coordinator.guard.rate_limiter import Dropped, RateLimiter
from fedpatch.shared.wire.chunked_transfer import CHUNK_OVERHEAD_BYTES
from fedpatch.shared.wire.messages import MAX_CHUNKS, Envelope, Grant, WorkRequest
from fedpatch.shared.wire.topics import ParsedTopic

MAX_WAITING_BYTES = 128 * 2**20
"""Of messages that wait for the coordinator: beyond that all are dropped, and devices say again what matters."""


class IngressFilter:
    """Each grant pays for the largest update of the run, so none is given before `expect` has told how large that is."""

    def __init__(self, max_devices: int) -> None:
        self._purses = RateLimiter(max_devices)
        self._lock = threading.Lock()
        self._largest_bytes = 0
        # Each is changed by one thread only: what came in, and what was taken.
        self._entered = self._taken = 0

    def expect(self, largest_update_bytes: int, chunk_bytes: int) -> None:
        """What an update of the run may take as it travels, in chunks of at most `chunk_bytes`."""
        chunks = min(MAX_CHUNKS, -(-largest_update_bytes // chunk_bytes))
        self._largest_bytes = largest_update_bytes + chunks * CHUNK_OVERHEAD_BYTES

    def admit(self, topic: ParsedTopic, size_bytes: int) -> bool:
        """In the link's thread: whether a message may go to the inbox."""
        full = self._entered - self._taken + size_bytes > MAX_WAITING_BYTES
        with self._lock:
            if full:
                self._purses.dropped["", "over_limit"] += 1
                return False
            if not self._purses.admit(topic.kind, topic.device, size_bytes, time.monotonic()):
                return False
        self._entered += size_bytes
        return True

    def took(self, size_bytes: int) -> None:
        """A message was taken out of the inbox."""
        self._taken += size_bytes

    def sends(self, device: str, envelope: Envelope) -> None:
        """The coordinator is about to send this."""
        with self._lock:
            match envelope.body:
                case WorkRequest():
                    self._purses.asked(device, envelope.run, envelope.round, time.monotonic())
                case Grant():
                    self._purses.granted(device, self._largest_bytes)

    def knows(self, device: str) -> None:
        """The device is one of the fleet."""
        with self._lock:
            self._purses.know(device, time.monotonic())

    def forgets(self, device: str) -> None:
        """It is not any more."""
        with self._lock:
            self._purses.forget(device)

    def take_dropped(self) -> Counter[tuple[str, Dropped]]:
        """What was dropped since the last call."""
        with self._lock:
            return self._purses.take_dropped()
