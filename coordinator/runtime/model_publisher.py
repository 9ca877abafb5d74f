"""Publishes the chunks of the global model: retained during a round, once for all devices.

The deltas that lead to it are retained too, as long as they are part of a chain. A broker without retained messages gets only
the chunks that devices ask for, since no device has subscribed yet at the beginning of a round.

Blobs that all devices of a round can fetch by URL are not published, until a device asks for a chunk of one.

Retained chunks outlive this process. So a note file names each blob, from before its first chunk is published until the broker
has cleared all its chunks. The next process in this directory clears the remaining chunks. The file has a line for each blob:
its digest and its number of chunks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.blobs.served_models import ServedModels
from fedpatch.shared.app.files import read_state, write_atomic
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.client import Link
from fedpatch.shared.wire.chunks import cut, encode_chunk
from fedpatch.shared.wire.messages import MAX_CHUNKS, Manifest
from fedpatch.shared.wire.topics import model_chunk, model_chunks

CLOSE_TIMEOUT_S = 2.0

_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,5})")

_log = logging.getLogger("fedpatch.publisher")


@dataclass
class _Leaving:
    """A blob whose retained chunks are being cleared.

    Attributes:
        chunk_count: Its number of chunks.
        cleared: Chunks whose clearing was given to the link.
    """

    chunk_count: int
    cleared: int = 0


class FileNote:
    """The note as a file; `where` is its path. `before_write` may raise, and nothing is written."""

    def __init__(self, path: Path, before_write: Callable[[], None] = lambda: None) -> None:
        self.where = path
        self._before_write = before_write

    def read(self) -> bytes:
        """Return the note; b"" if there is none."""
        try:
            return read_state(self.where)
        except FileNotFoundError:
            return b""

    def write(self, note: bytes) -> None:
        """Replace the note durably; b"" deletes it."""
        self._before_write()
        if note:
            write_atomic(self.where, note)
        else:
            self.where.unlink(missing_ok=True)


class BlobNote:
    """The note in the blob store of a run, where the next leader finds it; `where` is its place."""

    def __init__(self, blobs: BlobStore, key: str) -> None:
        self.where = blobs.where(key)
        self._blobs = blobs
        self._key = key

    def read(self) -> bytes:
        """Return the note; b"" if there is none."""
        return self._blobs.get(self._key) or b""

    def write(self, note: bytes) -> None:
        """Replace the note durably."""
        self._blobs.put(self._key, note)


@dataclass(frozen=True)
class Blob:
    """A blob to publish: the whole model, or a delta."""

    data: bytes
    manifest: Manifest


class ModelPublisher:
    """One model at a time, and the deltas that lead to it.

    Args:
        link: The connection to the broker.
        fleet: Name of the fleet.
        note: File with the names of the blobs that the broker may retain, or its place in a blob store.
        served: Store from which devices fetch blobs by URL; None: no store.
        retain: Whether the broker retains messages; it may be another broker after a reconnect.
        clock: Returns monotonic seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        link: Link,
        fleet: str,
        note: Path | FileNote | BlobNote,
        *,
        served: ServedModels | None = None,
        retain: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.retain = retain
        self._clock = clock
        self._sleep = sleep
        self._link = link
        self._fleet = fleet
        self._note = FileNote(note) if isinstance(note, Path) else note
        self._model = ""
        self._served = served
        self._shown: dict[str, Blob] = {}
        self._unpublished: set[str] = set()  # digests in `_shown` that devices fetch by URL
        self._leaving = self._read_note()

    def publish(self, model: Blob, steps: Iterable[Blob] = (), *, chunks: bool = True) -> dict[str, str]:
        """Publish the model and the deltas that lead to it, and clear the other blobs of earlier calls.

        The last delta is first and the model last, since most devices need the last delta only.

        Args:
            steps: The deltas.
            chunks: Whether a device needs chunks of blobs that have a URL.

        Returns:
            URLs by digest, of the blobs that can be fetched.
        """
        wanted = {blob.manifest.digest: blob for blob in (*reversed(tuple(steps)), model)}
        urls = {} if self._served is None else self._served.serve({one: blob.data for one, blob in wanted.items()})
        kept = {digest for digest, blob in self._shown.items() if wanted.get(digest) == blob}
        on_broker = kept - self._unpublished
        self._model = model.manifest.digest
        self._let_go(*self._shown.keys() - kept)
        self._forget_what_left()
        self._shown = wanted
        self._unpublished = set() if chunks else urls.keys() - on_broker
        new = [digest for digest in wanted if digest not in on_broker | self._unpublished]
        for digest in new:
            blob = wanted[digest]
            # An earlier coordinator may have cut the same blob into more chunks; the excess ones are cleared.
            left, count = self._leaving.pop(digest, None), blob.manifest.chunk_count
            if left is not None and left.chunk_count > count:
                self._leaving[digest] = _Leaving(left.chunk_count, cleared=count)
        self._write_note()
        self._take_back()
        self._show(new)
        return urls

    def republish(self) -> None:
        """Publish all blobs again; raise BrokerError if the broker no longer accepts packets of that size."""
        self._show(digest for digest in self._shown if digest not in self._unpublished)

    def repair(self, digest: str, indices: Iterable[int]) -> None:
        """Publish chunks again, or a whole blob that was not published because it has a URL.

        Nothing is published for an unknown blob. Raises BrokerError as `republish` does.
        """
        if digest in self._unpublished:
            self._unpublished.discard(digest)
            self._write_note()
            if self.retain:
                self._show([digest])
                return
        if digest in self._shown:
            self._publish_chunks(self._shown[digest], indices)

    def retract(self) -> None:
        """Clear the current model; the deltas stay for the next round."""
        self._let_go(self._model)
        self.drain()

    def drain(self) -> None:
        """Continue to clear, and forget the blobs whose clearing is acknowledged; called in idle moments."""
        if self._forget_what_left():
            self._write_note()
        self._take_back()

    def close(self) -> None:
        """Clear everything at the end of the run, and wait up to CLOSE_TIMEOUT_S for the broker's acknowledgements."""
        self._let_go(*self._shown)
        self.drain()
        if self._served is not None:
            self._served.close()
        give_up_at = self._clock() + CLOSE_TIMEOUT_S
        while self._leaving and self._clock() < give_up_at:
            self._sleep(0.01)
            self.drain()

    def _show(self, digests: Iterable[str]) -> None:
        for digest in digests:
            blob = self._shown[digest]
            if self.retain and not self._publish_chunks(blob, range(blob.manifest.chunk_count)):
                return

    def _publish_chunks(self, blob: Blob, indices: Iterable[int]) -> bool:
        """Publish chunks; return False when the link's queue is full. Devices ask for the missing chunks later."""
        manifest, wanted = blob.manifest, list(indices)
        for index, topic in zip(wanted, model_chunks(self._fleet, manifest.digest, wanted), strict=True):
            payload = encode_chunk(cut(blob.data, manifest, index))
            try:
                taken = self._link.publish(topic, payload, retain=self.retain)
            except BrokerError as error:
                raise BrokerError(f"{error}; `fedpatch resume` chooses smaller chunks, or set --chunk-kib") from error
            if not taken:
                _log.warning("outgoing queue is full at chunk %d of %d", index, manifest.chunk_count)
                return False
        return True

    def _let_go(self, *digests: str) -> None:
        for digest in digests:
            blob = self._shown.pop(digest, None)
            if blob is not None and digest not in self._unpublished:
                left = self._leaving.get(digest, _Leaving(0))
                self._leaving[digest] = _Leaving(max(left.chunk_count, blob.manifest.chunk_count))

    def _take_back(self) -> None:
        """Clear retained chunks, as far as the link's queue has room."""
        for digest, blob in self._leaving.items():
            while blob.cleared < blob.chunk_count:
                topic = model_chunk(self._fleet, digest, blob.cleared)
                if self.retain and not self._link.publish(topic, b"", retain=True):
                    return
                blob.cleared += 1

    def _forget_what_left(self) -> bool:
        """Forget the blobs whose clearing the broker has acknowledged; return whether there were any."""
        left = [digest for digest, blob in self._leaving.items() if blob.cleared == blob.chunk_count]
        if not left or not self._link.idle:
            return False
        for digest in left:
            del self._leaving[digest]
        return True

    def _write_note(self) -> None:
        shown = ((digest, blob) for digest, blob in self._shown.items() if digest not in self._unpublished)
        lines = [f"{digest} {blob.manifest.chunk_count}\n" for digest, blob in shown]
        lines += [f"{digest} {blob.chunk_count}\n" for digest, blob in self._leaving.items()]
        self._note.write("".join(lines).encode())

    def _read_note(self) -> dict[str, _Leaving]:
        lines = self._note.read().decode("ascii", errors="replace").splitlines()
        known = [found for found in map(_LINE.fullmatch, lines) if found and 0 < int(found[2]) <= MAX_CHUNKS]
        if len(known) < len(lines):
            _log.warning("%s: %d damaged lines are ignored", self._note.where, len(lines) - len(known))
        return {found[1]: _Leaving(int(found[2])) for found in known}
