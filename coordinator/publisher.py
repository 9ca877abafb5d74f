"""The global model's chunks on the broker: retained while the round lasts, published once for all devices.

A broker that retains nothing gets only what devices ask for: at the beginning of a round nobody has subscribed yet.

What is retained outlives this process. So its name stands in a file from before the first chunk is published until the
broker has taken all of it back; whoever starts next in this directory takes off what is left. The file has a line for each
model: its digest and its number of chunks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shared.errors import BrokerError
from shared.files import write_atomic
from shared.link import Link
from shared.messages import MAX_CHUNKS, Manifest
from shared.topics import model_chunk
from shared.transfer import cut, encode_chunk

CLOSE_TIMEOUT_S = 2.0

_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,5})")

_log = logging.getLogger("fedpatch.publisher")


@dataclass
class _Leaving:
    """A model of `chunk_count` chunks that is taken back; the link has been told to empty the first `told`."""

    chunk_count: int
    told: int = 0


class ModelPublisher:
    """One model at a time; `note` is the file that remembers what may be retained.

    `retain` follows what the broker offers; it must be set before the first call.
    """

    def __init__(self, link: Link, fleet: str, note: Path) -> None:
        self.retain = True
        self._link = link
        self._fleet = fleet
        self._note = note
        self._current: Manifest | None = None
        self._blob = b""
        self._leaving = self._read_note()

    def publish(self, blob: bytes, manifest: Manifest) -> None:
        """Takes the former model back and publishes all chunks of this one, if the broker keeps them."""
        self._let_go()
        self._forget_what_left()
        self._current, self._blob = manifest, blob
        self._leaving.pop(manifest.digest, None)
        self._write_note()
        self._take_back()
        self.republish()

    def republish(self, indices: Iterable[int] | None = None) -> None:
        """Publishes these chunks again, for whoever missed them; None: all that the broker should keep.

        BrokerError when the broker takes no packets of that size any more.
        """
        if self._current is None or (indices is None and not self.retain):
            return
        for index in range(self._current.chunk_count) if indices is None else indices:
            if not self._publish_chunk(self._current, index):
                # Devices ask for what they miss; pushing on would only fill the queue further.
                _log.warning("outgoing queue is full at chunk %d of %d", index, self._current.chunk_count)
                return

    def retract(self) -> None:
        """Takes the current model off the broker."""
        self._let_go()
        self.settle()

    def settle(self) -> None:
        """Forgets what was taken back, once the broker has acknowledged it; called whenever there is time."""
        if self._forget_what_left():
            self._write_note()
        self._take_back()

    def close(self) -> None:
        """The run is over: takes the model back, and waits a little for the broker to say so."""
        self.retract()
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_S
        while self._leaving and time.monotonic() < give_up_at:
            time.sleep(0.01)
            self.settle()

    def _publish_chunk(self, manifest: Manifest, index: int) -> bool:
        payload = encode_chunk(cut(self._blob, manifest, index))
        try:
            return self._link.publish(model_chunk(self._fleet, manifest.digest, index), payload, retain=self.retain)
        except BrokerError as error:
            raise BrokerError(f"{error}; `fedpatch resume` will cut them to fit, or set --chunk-kib") from error

    def _let_go(self) -> None:
        if self._current is not None:
            self._leaving[self._current.digest] = _Leaving(self._current.chunk_count)
            self._current, self._blob = None, b""

    def _take_back(self) -> None:
        """Empties the topics, as far as there is room in the link's queue."""
        for digest, model in self._leaving.items():
            while model.told < model.chunk_count:
                topic = model_chunk(self._fleet, digest, model.told)
                if self.retain and not self._link.publish(topic, b"", retain=True):
                    return
                model.told += 1

    def _forget_what_left(self) -> bool:
        """Whether there was anything to forget: all of it was told to the link, and the broker acknowledged everything."""
        left = [digest for digest, model in self._leaving.items() if model.told == model.chunk_count]
        if not left or not self._link.idle:
            return False
        for digest in left:
            del self._leaving[digest]
        return True

    def _write_note(self) -> None:
        lines = [f"{digest} {model.chunk_count}\n" for digest, model in self._leaving.items()]
        if self._current is not None:
            lines.append(f"{self._current.digest} {self._current.chunk_count}\n")
        if lines:
            write_atomic(self._note, "".join(lines).encode())
        else:
            self._note.unlink(missing_ok=True)

    def _read_note(self) -> dict[str, _Leaving]:
        try:
            lines = self._note.read_text(encoding="ascii", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        known = [found for found in map(_LINE.fullmatch, lines) if found and 0 < int(found[2]) <= MAX_CHUNKS]
        if len(known) < len(lines):
            _log.warning("%s: %d lines are damaged and passed over", self._note, len(lines) - len(known))
        return {found[1]: _Leaving(int(found[2])) for found in known}
