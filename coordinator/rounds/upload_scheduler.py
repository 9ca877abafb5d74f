"""The upload scheduler: a few devices upload at a time, each with a window of chunks; other devices wait in a queue.

The shared resource is the chunks in flight: slots x window chunks, well below the length of a broker's queue. The share of a
device is the number of chunks that it may have in flight. So `slots` devices upload at once if their updates are long, and more
devices if their updates are shorter than a window. The same shares limit the memory, for any size of the fleet, to `slots`
updates that are longer than a window, or to slots x window chunks.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from dataclasses import dataclass

from fedpatch.shared.wire.chunks import Bitmap, Chunk, fits
from fedpatch.shared.wire.messages import Ack, Grant, Manifest, RetryAfter

# Even in the longest queue a device offers again within a minute or two, since its grant may be lost.
MAX_RETRY_S = 60.0
# A link on which a chunk of the largest size takes longer needs smaller chunks.
STALL_S = 120.0
UPLOAD_IDLE_S = 30.0
"""Seconds of silence after which the slot of a device goes to the next one."""
# The largest chunk that is requested. The share of an update in larger chunks is its number of chunks of this size.
_LARGEST_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Complete:
    """A complete update.

    Attributes:
        manifest: The manifest of the offer.
        blob: The bytes of all chunks.
        intact: Whether their SHA-256 is the announced one.
    """

    manifest: Manifest
    blob: bytes
    intact: bool


class _Slot:
    def __init__(self, manifest: Manifest, share: int, now: float) -> None:
        self.manifest = manifest
        self.share = share
        self.have = Bitmap(manifest.chunk_count)
        self.parts: list[bytes | memoryview] = [b""] * manifest.chunk_count
        self.active_at = now
        self.grew_at = now
        self.unacked = 0


class UploadScheduler:
    """Grants upload slots.

    A device that is silent for `idle_s`, or sends no new chunk for STALL_S, loses its slot to the next device in the queue and
    waits for another grant.

    Args:
        slots: Devices that upload at once, if their updates are at least a window long.
        window: Chunks that one device may have in flight.
        idle_s: Seconds of silence after which a slot is lost. It must be several times the pause after which a device with a
            grant repeats its offer (shared.wire.chunk_upload).
        jitter: Randomness of retry times.
    """

    def __init__(self, *, slots: int, window: int, idle_s: float, jitter: random.Random) -> None:
        self._in_flight = slots * window
        self._window = window
        self._idle_s = idle_s
        self._jitter = jitter
        self._active: dict[str, _Slot] = {}
        self._waiting: OrderedDict[str, Manifest] = OrderedDict()
        self._taken = 0
        # The earliest time at which a slot is lost. If its device has sent a message since, the check then finds nothing.
        self._evict_at = math.inf

    @property
    def waiting(self) -> int:
        """The number of devices in the queue."""
        return len(self._waiting)

    def offer(self, device: str, manifest: Manifest, now: float) -> Grant | RetryAfter:
        """Answer an offer.

        Args:
            manifest: The manifest of the update, which was checked.
            now: The time, in seconds.

        Returns:
            A grant with the chunks that have arrived, or the time after which to offer again.
        """
        slot = self._active.get(device)
        if slot is not None and slot.manifest == manifest:
            slot.active_at = now
            slot.unacked = 0
            return self._grant(slot)
        self._leave(device)
        # A device that waits already keeps its place in the queue.
        self._waiting[device] = manifest
        self._evict_idle(now)
        if self._next_fits() == device:
            return self._admit(device, now)
        # An estimate of one second for each turn, with jitter so that the devices do not all offer again at once.
        turns = self.waiting * self._share(manifest) / self._in_flight
        return RetryAfter(manifest.digest, 1.0 + min(turns, MAX_RETRY_S) * self._jitter.uniform(0.5, 1.5))

    def chunk(self, device: str, chunk: Chunk, now: float) -> Ack | Complete | None:
        """Take a chunk.

        Args:
            now: The time, in seconds.

        Returns:
            None for a chunk without a grant, and for a chunk that needs no answer yet; an acknowledgement; or the complete
            update, whose slot is free again.
        """
        slot = self._active.get(device)
        if slot is None or not fits(chunk, slot.manifest):
            return None
        slot.active_at = now
        if slot.have.add(chunk.index):
            slot.parts[chunk.index] = chunk.data
            slot.unacked += 1
            slot.grew_at = now
            if slot.have.full:
                self._leave(device)
                blob = b"".join(slot.parts)
                return Complete(slot.manifest, blob, hashlib.sha256(blob).hexdigest() == slot.manifest.digest)
            if slot.unacked < max(1, self._window // 2):
                return None
        slot.unacked = 0
        return Ack(slot.manifest.digest, slot.have.to_bytes())

    def next_grants(self, now: float) -> list[tuple[str, Grant]]:
        """Grant free slots to the queue; called after every event that may have freed one."""
        if not self._waiting:
            return []
        self._evict_idle(now)
        grants: list[tuple[str, Grant]] = []
        while (device := self._next_fits()) is not None:
            grants.append((device, self._admit(device, now)))
        return grants

    def suspend(self, device: str) -> None:
        """Let a waiting device take the slot of a lost device; until then the chunks of the lost device are kept."""
        self._waiting.pop(device, None)
        if device in self._active:
            self._active[device].active_at = self._evict_at = -math.inf

    def release(self, device: str) -> None:
        """Forget the upload of a device."""
        self._leave(device)
        self._waiting.pop(device, None)

    def holds(self, device: str) -> bool:
        """Return whether a device has a slot or waits for one."""
        return device in self._active or device in self._waiting

    def has_in_line(self, device: str) -> bool:
        """Return whether a device waits for a slot."""
        return device in self._waiting

    def still_since(self, device: str, active_at: float, now: float) -> float:
        """Return the time of the last progress of an upload.

        Args:
            active_at: The time of its last message, which is returned for a device without an upload.
            now: The time, which is returned for a device in the queue.
        """
        if self.has_in_line(device):
            return now
        slot = self._active.get(device)
        return active_at if slot is None else slot.grew_at

    def clear(self) -> None:
        """Forget all uploads."""
        self._active.clear()
        self._waiting.clear()
        self._taken = 0

    def next_deadline(self) -> float | None:
        """Return the time at which an idle slot can go to a waiting device; None if no device waits."""
        return self._evict_at if self._waiting and self._active else None

    def _evict_idle(self, now: float) -> None:
        if now < self._evict_at:
            return
        for device in [d for d, s in self._active.items() if now >= self._ends_at(s)]:
            slot = self._leave(device)
            # Its grant may have been lost, so it gets another one in turn. A disconnected device offers again after its return.
            if slot is not None and slot.active_at != -math.inf:
                self._waiting[device] = slot.manifest
        self._evict_at = min(map(self._ends_at, self._active.values()), default=math.inf)

    def _ends_at(self, slot: _Slot) -> float:
        """Return the time at which the slot is lost: messages alone do not keep it, new chunks do."""
        return min(slot.active_at + self._idle_s, slot.grew_at + STALL_S)

    def _next_fits(self) -> str | None:
        """Return the first device of the queue if its share is free. No device with a smaller update overtakes it."""
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
        """Return the number of chunks that a device may have in flight."""
        return min(self._window, max(manifest.chunk_count, -(-manifest.size_bytes // _LARGEST_CHUNK_BYTES)))

    def _grant(self, slot: _Slot) -> Grant:
        return Grant(slot.manifest.digest, self._window, slot.have.to_bytes())
