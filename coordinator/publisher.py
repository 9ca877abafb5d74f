"""The global model's chunks on the broker: retained while the round lasts, published once for all devices.

What is retained outlives this process. So its name stands in a file from before the first chunk is published until the
broker has taken all of it back; whoever starts next in this directory takes off what is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shared.codec import from_bytes, to_bytes
from shared.errors import WireError
from shared.files import write_atomic
from shared.link import Link
from shared.messages import Manifest
from shared.topics import model_chunk
from shared.transfer import cut, encode_chunk

CLOSE_TIMEOUT_S = 2.0

_log = logging.getLogger("fedpatch.publisher")


@dataclass(frozen=True)
class _Note:
    """Models of which chunks may be retained."""

    models: tuple[Manifest, ...] = ()


class ModelPublisher:
    """One model at a time; `note` is the file that remembers what may be retained. `retain` follows what the broker offers."""

    def __init__(self, link: Link, fleet: str, note: Path) -> None:
        self.retain = True
        self._link = link
        self._fleet = fleet
        self._note = note
        self._current: Manifest | None = None
        self._blob = b""
        self._taken_back = self._read_note()
        for manifest in self._taken_back:
            self._take_back(manifest)

    def publish(self, blob: bytes, manifest: Manifest) -> None:
        """Takes the former model back and publishes all chunks of this one."""
        self.retract()
        self.settle()
        self._current, self._blob = manifest, blob
        self._write_note()
        self.republish(range(manifest.chunk_count))

    def republish(self, indices: Iterable[int] | None = None) -> None:
        """Publishes these chunks again (None: all), for whoever missed them."""
        if self._current is None:
            return
        for index in range(self._current.chunk_count) if indices is None else indices:
            topic = model_chunk(self._fleet, self._current.digest, index)
            if not self._link.publish(topic, encode_chunk(cut(self._blob, self._current, index)), retain=self.retain):
                # Devices ask for what they miss; pushing on would only fill the queue further.
                _log.warning("outgoing queue is full at chunk %d of %d", index, self._current.chunk_count)
                return

    def retract(self) -> None:
        """Takes the current model off the broker."""
        if self._current is not None:
            self._take_back(self._current)
            self._taken_back = (*self._taken_back, self._current)
            self._current, self._blob = None, b""

    def settle(self) -> None:
        """Forgets what was taken back, if the broker has acknowledged everything that was published."""
        if self._taken_back and self._link.idle:
            self._taken_back = ()
            self._write_note()

    def close(self) -> None:
        """The run is over: takes the model back, and waits a little for the broker to say so."""
        self.retract()
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_S
        while not self._link.idle and time.monotonic() < give_up_at:
            time.sleep(0.01)
        self.settle()

    def _take_back(self, manifest: Manifest) -> None:
        if self.retain:
            for index in range(manifest.chunk_count):
                self._link.publish(model_chunk(self._fleet, manifest.digest, index), b"", retain=True)

    def _write_note(self) -> None:
        models = (*self._taken_back, self._current) if self._current is not None else self._taken_back
        if models:
            write_atomic(self._note, to_bytes(_Note(models)))
        else:
            self._note.unlink(missing_ok=True)

    def _read_note(self) -> tuple[Manifest, ...]:
        try:
            return from_bytes(self._note.read_bytes(), _Note).models
        except (FileNotFoundError, WireError):
            return ()
