"""The download of a model: the requests for its missing chunks, and the pauses between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedpatch.shared.wire.chunks import MAX_QUIET_S, Bitmap, Chunk, fits
from fedpatch.shared.wire.messages import Manifest, Need

ASK_QUIET_S = 1.0


class Download:
    """The receiving end of the global model, which is one blob or several: tracks chunks, and asks for missing ones.

    `tick` asks once no new chunk has arrived for ASK_QUIET_S or, on a slow line, for twice the time of one chunk. This pause
    doubles up to MAX_QUIET_S while no chunk arrives, and each new chunk resets it. Where chunks arrive only on request, as
    from a broker that retains no messages, the next window is requested as soon as the last one is complete.

    Args:
        blobs: Manifests of the blobs to download.
        now: The time in seconds, from any fixed origin; as in all methods.
        have: Indices of the chunks kept from before a restart, by the digest of their blob.
        window: Most chunks to ask for at a time.
        asks: False while chunks are fetched by URL, which needs no requests; `ask_from` ends that.

    Example:
        >>> from fedpatch.shared.wire.chunks import cut, describe
        >>> blob = b"x" * 20_000
        >>> manifest = describe(blob, chunk_bytes=8192, encoding="fp32", raw_bytes=20_000, schema="00" * 32)
        >>> download = Download([manifest], now=0.0)
        >>> [download.take(cut(blob, manifest, index), now=0.1) for index in range(3)]
        [True, True, True]
        >>> download.complete
        True
    """

    def __init__(
        self,
        blobs: Sequence[Manifest],
        now: float,
        *,
        have: Mapping[str, Iterable[int]] | None = None,
        window: int = 32,
        asks: bool = True,
    ) -> None:
        self.asks = asks
        self._blobs = {blob.digest: blob for blob in blobs}
        known = have or {}
        self._have = {blob.digest: Bitmap(blob.chunk_count, known.get(blob.digest, ())) for blob in blobs}
        self._window = window
        self._quiet_s = ASK_QUIET_S
        self._ask_at = now + ASK_QUIET_S
        self._asked: set[tuple[str, int]] = set()
        self._unasked = False  # whether a chunk that was not requested arrived since the last Need
        self._pulling = False  # whether no such chunk arrived before that Need, so chunks arrive on request only
        self._last_at = now
        self._pace_s = math.inf  # the shortest time between two chunks

    @property
    def have(self) -> dict[str, frozenset[int]]:
        """Indices of the chunks received, by the digest of their blob."""
        return {digest: frozenset(indices) for digest, indices in self._have.items()}

    @property
    def complete(self) -> bool:
        """True if all chunks have been received. The caller still has to check the SHA-256 of each blob."""
        return all(indices.full for indices in self._have.values())

    def take(self, chunk: Chunk, now: float) -> bool:
        """Register a chunk. Returns True if it is new and fits: the caller must then store it."""
        blob = self._blobs.get(chunk.digest)
        if blob is None or not fits(chunk, blob) or not self._have[chunk.digest].add(chunk.index):
            return False
        self._pace_s = min(self._pace_s, now - self._last_at)
        self._last_at = now
        self._quiet_s = min(max(ASK_QUIET_S, 2 * self._pace_s), MAX_QUIET_S)
        self._ask_at = now + self._quiet_s
        place = chunk.digest, chunk.index
        if place not in self._asked:
            self._unasked = True
        elif self._window_is_here(place) and self._pulling and not self._unasked:
            self._ask_at = now
        return True

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due, or None when the download is complete."""
        return self._ask_at if self.asks and not self.complete else None

    def tick(self, now: float) -> list[Need]:
        """Return requests for missing chunks if a request is due, else nothing."""
        if not self.asks or self.complete or now < self._ask_at:
            return []
        self._quiet_s = min(2 * self._quiet_s, MAX_QUIET_S)
        self._ask_at = now + self._quiet_s
        self._pulling, self._unasked = not self._unasked, False
        self._asked = set()
        needs = []
        for digest, indices in self._have.items():
            wanted = Bitmap(indices.count, indices.missing(self._window - len(self._asked)))
            if len(wanted):
                self._asked.update((digest, index) for index in wanted)
                needs.append(Need(digest, wanted.to_bytes()))
        return needs

    def ask_from(self, now: float) -> None:
        """Ask for the missing chunks from now on, after ASK_QUIET_S."""
        self.asks, self._quiet_s, self._ask_at = True, ASK_QUIET_S, now + ASK_QUIET_S

    def on_reconnect(self, now: float) -> None:
        """Reset the pause after a reconnect, because requests may be lost: `tick` asks after at most ASK_QUIET_S."""
        self._quiet_s = ASK_QUIET_S
        self._ask_at = min(self._ask_at, now + self._quiet_s)

    def _window_is_here(self, arrived: tuple[str, int]) -> bool:
        self._asked.discard(arrived)
        return not self._asked
