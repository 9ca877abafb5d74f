"""Chunked, content-addressed transfer: manifests, and the two ends as state machines without IO.

A PUBACK proves nothing about the other end, so both directions repair themselves: whoever lacks chunks says which. Down,
a device asks for what is missing when the flow has been quiet (`Download`). Up, a device sends at most a window of chunks
that the coordinator has not acknowledged, and offers again when it hears nothing (`Upload`); the coordinator's end is
coordinator.rounds.upload_scheduler. Neither side holds more than its window in flight.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from fedpatch.shared.errors import BrokerError, UsageError, WireError
from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES, Bitmap, Chunk, decode_chunk, encode_chunk
from fedpatch.shared.wire.messages import MAX_CHUNKS, Ack, Grant, Manifest, Need, Offer

__all__ = [
    "CHUNK_OVERHEAD_BYTES",
    "Bitmap",
    "Chunk",
    "Download",
    "SendChunk",
    "Upload",
    "check_manifest",
    "chunk_bytes_within",
    "cut",
    "decode_chunk",
    "describe",
    "encode_chunk",
    "fits",
]

# Topic, fixed header and MQTT 5 properties of a publish; generous: a packet over the broker's limit poisons a session.
_PACKET_OVERHEAD_BYTES = 512
MIN_CHUNK_BYTES = 8 * 1024

MAX_QUIET_S = 30.0
ASK_QUIET_S = 1.0
OFFER_QUIET_S = 3.0
# Of a device that holds a place among the uploads: it must be heard several times before its place is given away.
GRANTED_QUIET_S = 5.0


def chunk_bytes_within(configured_bytes: int, max_packet_bytes: int | None) -> int:
    """Data bytes per chunk that pass a broker's packet limit (None: no limit known). BrokerError below 8 KiB."""
    if max_packet_bytes is None:
        return configured_bytes
    fits = max_packet_bytes - CHUNK_OVERHEAD_BYTES - _PACKET_OVERHEAD_BYTES
    if fits < MIN_CHUNK_BYTES:
        raise BrokerError(
            f"the broker takes packets of at most {max_packet_bytes} bytes, too few for chunks of {MIN_CHUNK_BYTES}; "
            "raise its packet limit (mosquitto: max_packet_size)"
        )
    return min(configured_bytes, fits)


def describe(blob: bytes, *, chunk_bytes: int, encoding: str, raw_bytes: int, schema: str) -> Manifest:
    """The manifest of a blob that is in memory. UsageError when it has more chunks than a manifest can announce."""
    count = -(-len(blob) // chunk_bytes)
    if count > MAX_CHUNKS:
        raise UsageError(f"{count} chunks of {chunk_bytes} bytes: at most {MAX_CHUNKS} can be sent; use larger chunks")
    return Manifest(
        digest=hashlib.sha256(blob).hexdigest(),
        size_bytes=len(blob),
        chunk_bytes=chunk_bytes,
        chunk_count=count,
        encoding=encoding,
        raw_bytes=raw_bytes,
        schema=schema,
    )


def check_manifest(manifest: Manifest, max_bytes: int) -> None:
    """WireError when the figures contradict each other or pass the ceiling; called before anything is allocated."""
    if manifest.chunk_count != -(-manifest.size_bytes // manifest.chunk_bytes):
        cut_so = f"{manifest.size_bytes} bytes in chunks of {manifest.chunk_bytes}"
        raise WireError(f"manifest: {cut_so} are not {manifest.chunk_count} chunks")
    if max(manifest.size_bytes, manifest.raw_bytes) > max_bytes:
        raise WireError(
            f"manifest announces {manifest.size_bytes} bytes ({manifest.raw_bytes} unpacked); the limit is {max_bytes}"
        )


def cut(blob: bytes, manifest: Manifest, index: int) -> Chunk:
    """Chunk `index` of a blob."""
    start = index * manifest.chunk_bytes
    return Chunk(manifest.digest, index, manifest.chunk_count, blob[start : start + manifest.chunk_bytes])


def fits(chunk: Chunk, manifest: Manifest) -> bool:
    """Whether a chunk belongs to the announced blob and has the length its place demands."""
    if chunk.digest != manifest.digest or chunk.count != manifest.chunk_count:
        return False
    last = manifest.size_bytes - (manifest.chunk_count - 1) * manifest.chunk_bytes
    return len(chunk.data) == (last if chunk.index == manifest.chunk_count - 1 else manifest.chunk_bytes)


class Download:
    """The receiving end of the global model, in one blob or in several: which chunks are here, when to ask for the others.

    `have` are chunks kept from before a restart, by the digest of their blob. `tick` says what is needed once nothing
    new came for a while: ASK_QUIET_S, or twice the time that a chunk takes on a line so slow that this is longer. The pause
    doubles up to 30 s while asking has no effect, and starts over with each new chunk. Where chunks come only because
    they are asked for, as from a broker that retains nothing, the next window is asked for as soon as the last one is here.
    """

    def __init__(
        self,
        blobs: Sequence[Manifest],
        now: float,
        *,
        have: Mapping[str, Iterable[int]] | None = None,
        window: int = 32,
    ) -> None:
        self._blobs = {blob.digest: blob for blob in blobs}
        known = have or {}
        self._have = {blob.digest: Bitmap(blob.chunk_count, known.get(blob.digest, ())) for blob in blobs}
        self._window = window
        self._quiet_s = ASK_QUIET_S
        self._ask_at = now + ASK_QUIET_S
        self._asked: set[tuple[str, int]] = set()
        self._unasked = False  # whether a chunk came that had not been asked for, since the last Need
        self._pulling = False  # whether that was so before it
        self._last_at = now
        self._pace_s = math.inf  # the shortest time that a chunk took after the one before

    @property
    def have(self) -> dict[str, frozenset[int]]:
        """The chunks that are here, by the digest of their blob."""
        return {digest: frozenset(indices) for digest, indices in self._have.items()}

    @property
    def complete(self) -> bool:
        """All chunks are here (the SHA-256 of each blob is still to be checked)."""
        return all(indices.full for indices in self._have.values())

    def take(self, chunk: Chunk, now: float) -> bool:
        """True when the chunk is new and fits: the caller stores it."""
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
        """When `tick` has something to say."""
        return None if self.complete else self._ask_at

    def tick(self, now: float) -> list[Need]:
        """What to ask for, if the flow has been quiet for too long, or ended with what was asked for."""
        if self.complete or now < self._ask_at:
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

    def on_reconnect(self, now: float) -> None:
        """The link was down, and with it what was asked for: ask after the first pause, however long the last one was."""
        self._quiet_s = ASK_QUIET_S
        self._ask_at = min(self._ask_at, now + self._quiet_s)

    def _window_is_here(self, arrived: tuple[str, int]) -> bool:
        self._asked.discard(arrived)
        return not self._asked


@dataclass(frozen=True)
class SendChunk:
    """Publish chunk `index` of the update."""

    index: int


class Upload:
    """The sending end of an update: offer, send within the window, offer again when it has gone quiet.

    Done is what the coordinator's Committed (or Refused) says, not what this machine believes; until then it keeps
    offering. Only an offer gives up what is in flight: it travels behind those chunks, so its Grant knows of them. Its
    pauses double up to 30 s while nobody answers, and up to 5 s while it holds a place that others wait for.
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
        """When to offer (again) if nothing is heard."""
        return self._offer_at

    def tick(self, now: float) -> list[Offer | SendChunk]:
        """An Offer when it is time. What was in flight counts as lost; the Grant will say what arrived."""
        if now < self._offer_at:
            return []
        self._in_flight.clear()
        self._window = 0
        self._offer_at = now + self._quiet_s
        self._quiet_s = min(2 * self._quiet_s, self._longest_s)
        return [Offer(self.manifest)]

    def on_reconnect(self, now: float) -> None:
        """The link was down: offer at the next tick instead of waiting."""
        self._quiet_s = OFFER_QUIET_S
        self._offer_at = now

    def on_grant(self, grant: Grant, now: float) -> list[Offer | SendChunk]:
        """Opens the window. WireError when the bitmap does not fit."""
        have = Bitmap.from_bytes(self.manifest.chunk_count, grant.have)
        self._window = grant.window
        self._longest_s = GRANTED_QUIET_S
        return self._heard(have, now)

    def on_ack(self, ack: Ack, now: float) -> list[Offer | SendChunk]:
        """Moves the window. WireError when the bitmap does not fit."""
        return self._heard(Bitmap.from_bytes(self.manifest.chunk_count, ack.have), now)

    def on_retry_after(self, delay_s: float, now: float) -> None:
        """Others upload: offer again later."""
        self._longest_s = MAX_QUIET_S
        self._offer_at = now + max(delay_s, 0.1)

    def _heard(self, have: Bitmap, now: float) -> list[Offer | SendChunk]:
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
