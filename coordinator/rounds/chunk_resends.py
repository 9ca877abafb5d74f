"""The chunks that are published again: those that a device asks for, without those that were published shortly before."""

from __future__ import annotations

import math

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunks import Bitmap
from fedpatch.shared.wire.messages import Manifest, Need

# Shorter than the pause after which a device asks again for missing chunks (shared.wire.chunk_download.Download).
REPUBLISH_S = 0.8
# The assumed rate of a broker to all its subscribers together. A request for chunks that are still on their way must not make
# the broker send them to all devices again: with a thousand devices it would never finish.
FAN_OUT_BYTES_S = 50e6


class ChunkResender:
    """Chooses chunks to publish again. All subscribers receive them, so that one publication serves all devices.

    Args:
        model: The manifest of the published model or delta.
        now: The time at which it was published, in seconds.
        unpublished: Whether no chunk is on the broker, because devices fetch the blob by URL. After the first request the
            publisher publishes all chunks (coordinator.runtime.model_publisher).
    """

    def __init__(self, model: Manifest, now: float = -math.inf, *, unpublished: bool = False) -> None:
        self._model = model
        self._unpublished = unpublished
        # The first request is served at once if the model is small or devices are few, since a broker may retain nothing.
        self._published_at = now - REPUBLISH_S
        self._sent_at: dict[int, float] = {}

    def due(self, need: Need, now: float, waiting: int = 1) -> tuple[int, ...]:
        """Return the chunks to publish now.

        Args:
            need: The request of a device, with the bitmap of missing chunks.
            now: The time, in seconds.
            waiting: Devices that have not downloaded the model yet. The more, the longer a publication takes.

        Returns:
            Indices of chunks, without chunks that were published shortly before. Empty for another model and for a bitmap of
            another length.
        """
        if need.digest != self._model.digest:
            return ()
        try:
            missing = Bitmap.from_bytes(self._model.chunk_count, need.missing)
        except WireError:
            return ()
        if self._unpublished and len(missing):
            self._unpublished, self._published_at = False, now
            return tuple(missing)
        pause_s = max(REPUBLISH_S, waiting * self._model.size_bytes / FAN_OUT_BYTES_S)
        wanted = tuple(i for i in missing if now >= self._sent_at.get(i, self._published_at) + pause_s)
        self._sent_at.update(dict.fromkeys(wanted, now))
        return wanted
