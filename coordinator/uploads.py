"""The receiving end of updates: K devices at a time, each with a window of chunks; everyone else waits in line.

Memory is K updates, whatever the size of the fleet, and K x window chunks are in flight, well under a broker's queue.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from dataclasses import dataclass

from shared.messages import Ack, Grant, Manifest, RetryAfter
from shared.transfer import Bitmap, Chunk, fits


@dataclass(frozen=True)
class Complete:
    """All chunks of a device's update are here; `intact` tells whether their SHA-256 is the announced one."""

    manifest: Manifest
    blob: bytes
    intact: bool


class _Slot:
    def __init__(self, manifest: Manifest, now: float) -> None:
        self.manifest = manifest
        self.have = Bitmap(manifest.chunk_count)
        self.buffer = bytearray(manifest.size_bytes)
        self.heard_at = now
        self.unacked = 0


class UploadDesk:
    """Who may upload now. `slots` devices at once, `window` chunks each; a silent slot is given away after `idle_s`."""

    def __init__(self, *, slots: int, window: int, idle_s: float, jitter: random.Random) -> None:
        self._slots = slots
        self._window = window
        self._idle_s = idle_s
        self._jitter = jitter
        self._active: dict[str, _Slot] = {}
        self._waiting: OrderedDict[str, Manifest] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Devices in line."""
        return len(self._waiting)

    def offer(self, device: str, manifest: Manifest, now: float) -> Grant | RetryAfter:
        """Answers an Offer whose manifest was checked. The same offer again gives the chunks that are here already."""
        slot = self._active.get(device)
        if slot is not None and slot.manifest == manifest:
            slot.heard_at = now
            slot.unacked = 0
            return self._grant(slot)
        self._active.pop(device, None)
        # Whoever waits already keeps its place.
        self._waiting[device] = manifest
        self._evict_idle(now)
        if len(self._active) < self._slots and next(iter(self._waiting)) == device:
            return self._admit(device, now)
        # Spread over the line's length, so that those who wait do not come back together.
        delay_s = 1.0 + self.waiting / self._slots * self._jitter.uniform(0.5, 1.5)
        return RetryAfter(manifest.digest, delay_s)

    def chunk(self, device: str, chunk: Chunk, now: float) -> Ack | Complete | None:
        """None for a chunk that is nobody's; Complete frees the slot."""
        slot = self._active.get(device)
        if slot is None or not fits(chunk, slot.manifest):
            return None
        slot.heard_at = now
        if slot.have.add(chunk.index):
            start = chunk.index * slot.manifest.chunk_bytes
            slot.buffer[start : start + len(chunk.data)] = chunk.data
            slot.unacked += 1
            if slot.have.full:
                del self._active[device]
                blob = bytes(slot.buffer)
                return Complete(slot.manifest, blob, hashlib.sha256(blob).hexdigest() == slot.manifest.digest)
            if slot.unacked < max(1, self._window // 4):
                return None
        slot.unacked = 0
        return Ack(slot.manifest.digest, slot.have.to_bytes())

    def next_grants(self, now: float) -> list[tuple[str, Grant]]:
        """Hands free slots to those who wait; called after anything that may have freed one."""
        self._evict_idle(now)
        grants: list[tuple[str, Grant]] = []
        while self._waiting and len(self._active) < self._slots:
            device = next(iter(self._waiting))
            grants.append((device, self._admit(device, now)))
        return grants

    def suspend(self, device: str) -> None:
        """The device is gone: whoever waits may have its slot; until then, what arrived is kept for its return."""
        self._waiting.pop(device, None)
        if device in self._active:
            self._active[device].heard_at = -math.inf

    def release(self, device: str) -> None:
        """Forgets a device's upload."""
        self._active.pop(device, None)
        self._waiting.pop(device, None)

    def clear(self) -> None:
        """The round is over."""
        self._active.clear()
        self._waiting.clear()

    def next_deadline(self) -> float | None:
        """When a silent slot could be given to somebody who waits."""
        if not self._waiting or not self._active:
            return None
        return min(slot.heard_at for slot in self._active.values()) + self._idle_s

    def _evict_idle(self, now: float) -> None:
        if self._waiting:
            for device in [d for d, s in self._active.items() if now >= s.heard_at + self._idle_s]:
                del self._active[device]

    def _admit(self, device: str, now: float) -> Grant:
        slot = self._active[device] = _Slot(self._waiting.pop(device), now)
        return self._grant(slot)

    def _grant(self, slot: _Slot) -> Grant:
        return Grant(slot.manifest.digest, self._window, slot.have.to_bytes())
