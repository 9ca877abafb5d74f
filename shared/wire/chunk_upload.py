"""The upload of an update: its offers, the window of chunks in flight, and the pauses between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from fedpatch.shared.wire.chunks import MAX_QUIET_S, Bitmap
from fedpatch.shared.wire.messages import Ack, Grant, Manifest, Offer

OFFER_QUIET_S = 3.0
# Pause of a device with an upload slot: several of its offers must arrive before the coordinator gives the slot away.
GRANTED_QUIET_S = 5.0


@dataclass(frozen=True)
class SendChunk:
    """Publish chunk `index` of the update."""

    index: int


class Upload:
    """The sending end of an update: it offers, sends chunks within the window, and offers again when no answer comes.

    Only the coordinator's Committed or Refused ends an upload; until then the device offers again and again. An offer is sent
    after the chunks in flight, so the Grant that answers it knows which of them arrived. The pause between offers doubles
    while no answer comes: up to MAX_QUIET_S, or up to GRANTED_QUIET_S while the device has an upload slot.

    Args:
        manifest: Manifest of the update.
        now: The time in seconds, from any fixed origin; as in all methods.

    Example:
        >>> from fedpatch.shared.wire.chunks import describe
        >>> manifest = describe(b"x" * 9000, chunk_bytes=8192, encoding="fp32", raw_bytes=9000, schema="00" * 32)
        >>> upload = Upload(manifest, now=0.0)
        >>> upload.tick(now=0.0) == [Offer(manifest)]
        True
        >>> upload.on_grant(Grant(manifest.digest, window=4, have=Bitmap(2).to_bytes()), now=0.5)
        [SendChunk(index=0), SendChunk(index=1)]
    """

    def __init__(self, manifest: Manifest, now: float) -> None:
        self.manifest = manifest
        self._acked = Bitmap(manifest.chunk_count)
        self._in_flight: set[int] = set()
        self._window = 0
        self._quiet_s = OFFER_QUIET_S
        self._longest_s = MAX_QUIET_S
        self._offer_at = now

    def next_deadline(self) -> float:
        """Return the time of the next offer if no answer comes before."""
        return self._offer_at

    def tick(self, now: float) -> list[Offer | SendChunk]:
        """Return an Offer if one is due. Chunks in flight then count as lost; the Grant will say which arrived."""
        if now < self._offer_at:
            return []
        self._in_flight.clear()
        self._window = 0
        self._offer_at = now + self._quiet_s
        self._quiet_s = min(2 * self._quiet_s, self._longest_s)
        return [Offer(self.manifest)]

    def on_reconnect(self, now: float) -> None:
        """Make an offer due at once, after a reconnect."""
        self._quiet_s = OFFER_QUIET_S
        self._offer_at = now

    def on_grant(self, grant: Grant, now: float) -> list[Offer | SendChunk]:
        """Open the window and return the chunks to send. Raises WireError if the bitmap does not fit."""
        have = Bitmap.from_bytes(self.manifest.chunk_count, grant.have)
        self._window = grant.window
        self._longest_s = GRANTED_QUIET_S
        return self._acknowledged(have, now)

    def on_ack(self, ack: Ack, now: float) -> list[Offer | SendChunk]:
        """Move the window and return the chunks to send. Raises WireError if the bitmap does not fit."""
        return self._acknowledged(Bitmap.from_bytes(self.manifest.chunk_count, ack.have), now)

    def on_retry_after(self, delay_s: float, now: float) -> None:
        """Put the next offer off for `delay_s`, at least 0.1 s: all upload slots are in use."""
        self._longest_s = MAX_QUIET_S
        self._offer_at = now + max(delay_s, 0.1)

    def _acknowledged(self, have: Bitmap, now: float) -> list[Offer | SendChunk]:
        before = len(self._acked)
        self._acked = have
        self._in_flight.difference_update(self._acked)
        if len(self._acked) > before:
            self._quiet_s = OFFER_QUIET_S
        self._quiet_s = min(self._quiet_s, self._longest_s)
        self._offer_at = now + self._quiet_s
        waiting = (i for i in range(have.count) if i not in have and i not in self._in_flight)
        sent = list(islice(waiting, max(0, self._window - len(self._in_flight))))
        self._in_flight.update(sent)
        return [SendChunk(index) for index in sent]
