"""The receiving end of updates: a few devices at a time, each with a window of chunks; everyone else waits in line.

What is shared out is chunks in flight: slots x window of them, well under a broker's queue. A device takes as many as it can
have under way, so that `slots` devices with long updates upload at once, and more of them where updates are shorter
than a window. Memory is bounded by the same shares, whatever the size of the fleet: `slots` updates that are longer
than a window, or slots x window chunks.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from dataclasses import dataclass

from fedpatch.shared.wire.chunked_transfer import Bitmap, Chunk, fits
from fedpatch.shared.wire.messages import Ack, Grant, Manifest, RetryAfter

# However long the line, a device asks again within a minute or two: a grant may be lost, and with it its turn.
MAX_RETRY_S = 60.0
# On a line so slow that a chunk of the largest size takes longer, there are smaller chunks to choose.
STALL_S = 120.0
# No device is asked for larger chunks. One that offers its update in fewer is taken to have as many as this makes of it.
_LARGEST_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Complete:
    """All chunks of a device's update are here; `intact` tells whether their SHA-256 is the announced one."""

    manifest: Manifest
    blob: bytes
    intact: bool


class _Slot:
    def __init__(self, manifest: Manifest, share: int, now: float) -> None:
        self.manifest = manifest
        self.share = share
        self.have = Bitmap(manifest.chunk_count)
        self.buffer = bytearray(manifest.size_bytes)
        self.heard_at = now
        self.grew_at = now
        self.unacked = 0


class UploadScheduler:
    """Who may upload now: slots x window chunks in flight, at most `window` of them of one device.

    A place whose device is silent for `idle_s`, or sends nothing new for STALL_S, is given to the next in line, and that device
    waits for another turn.
    `idle_s` must hold several of the pauses after which a granted device speaks again (shared.wire.chunked_transfer).
    """

    def __init__(self, *, slots: int, window: int, idle_s: float, jitter: random.Random) -> None:
        self._in_flight = slots * window
        self._window = window
        self._idle_s = idle_s
        self._jitter = jitter
        self._active: dict[str, _Slot] = {}
        self._waiting: OrderedDict[str, Manifest] = OrderedDict()
        self._taken = 0
        # No place is given away before: a device that was heard since makes it too early, which costs one look.
        self._evict_at = math.inf

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
        self._leave(device)
        # Whoever waits already keeps its place.
        self._waiting[device] = manifest
        self._evict_idle(now)
        if self._next_fits() == device:
            return self._admit(device, now)
        # A guess of a second for each turn, drawn so that those who wait do not come back together.
        turns = self.waiting * self._share(manifest) / self._in_flight
        return RetryAfter(manifest.digest, 1.0 + min(turns, MAX_RETRY_S) * self._jitter.uniform(0.5, 1.5))

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
            slot.grew_at = now
            if slot.have.full:
                self._leave(device)
                blob = bytes(slot.buffer)
                return Complete(slot.manifest, blob, hashlib.sha256(blob).hexdigest() == slot.manifest.digest)
            if slot.unacked < max(1, self._window // 4):
                return None
        slot.unacked = 0
        return Ack(slot.manifest.digest, slot.have.to_bytes())

    def next_grants(self, now: float) -> list[tuple[str, Grant]]:
        """Hands free places to those who wait; called after anything that may have freed one."""
        self._evict_idle(now)
        grants: list[tuple[str, Grant]] = []
        while (device := self._next_fits()) is not None:
            grants.append((device, self._admit(device, now)))
        return grants

    def suspend(self, device: str) -> None:
        """The device is gone: whoever waits may have its place; until then, what arrived is kept for its return."""
        self._waiting.pop(device, None)
        if device in self._active:
            self._active[device].heard_at = self._evict_at = -math.inf

    def release(self, device: str) -> None:
        """Forgets a device's upload."""
        self._leave(device)
        self._waiting.pop(device, None)

    def has_in_line(self, device: str) -> bool:
        """Whether a device waits for its place."""
        return device in self._waiting

    def still_since(self, device: str, heard_at: float, now: float) -> float:
        """Since when a device's upload stands still; `now` while it waits in line, `heard_at` where nothing is known of it."""
        if self.has_in_line(device):
            return now
        slot = self._active.get(device)
        return heard_at if slot is None else slot.grew_at

    def clear(self) -> None:
        """The round is over."""
        self._active.clear()
        self._waiting.clear()
        self._taken = 0

    def next_deadline(self) -> float | None:
        """When a silent place could be given to somebody who waits."""
        return self._evict_at if self._waiting and self._active else None

    def _evict_idle(self, now: float) -> None:
        if not self._waiting or now < self._evict_at:
            return
        for device in [d for d, s in self._active.items() if now >= self._ends_at(s)]:
            slot = self._leave(device)
            # Perhaps only its grant was lost: it gets another one in turn. Who is gone offers when it is back.
            if slot is not None and slot.heard_at != -math.inf:
                self._waiting[device] = slot.manifest
        self._evict_at = min(map(self._ends_at, self._active.values()), default=math.inf)

    def _ends_at(self, slot: _Slot) -> float:
        """When its place is given away. To speak is not enough for ever: it must bring something too."""
        return min(slot.heard_at + self._idle_s, slot.grew_at + STALL_S)

    def _next_fits(self) -> str | None:
        """The first in line, if its share is free: nobody overtakes it, however small."""
        for device, manifest in self._waiting.items():
            return device if self._taken + self._share(manifest) <= self._in_flight else None
        return None

    def _admit(self, device: str, now: float) -> Grant:
        manifest = self._waiting.pop(device)
        slot = self._active[device] = _Slot(manifest, self._share(manifest), now)
        self._taken += slot.share
        self._evict_at = min(self._evict_at, self._ends_at(slot))
        return self._grant(slot)

    def _leave(self, device: str) -> _Slot | None:
        slot = self._active.pop(device, None)
        self._taken -= slot.share if slot else 0
        return slot

    def _share(self, manifest: Manifest) -> int:
        """Chunks that a device may have under way."""
        return min(self._window, max(manifest.chunk_count, -(-manifest.size_bytes // _LARGEST_CHUNK_BYTES)))

    def _grant(self, slot: _Slot) -> Grant:
        return Grant(slot.manifest.digest, self._window, slot.have.to_bytes())
