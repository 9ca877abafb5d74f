"""Which chunks of the global model are published once more, for devices that miss them."""

from __future__ import annotations

import math

from shared.errors import WireError
from shared.messages import Manifest, Need
from shared.transfer import Bitmap

# Shorter than the pause after which a device asks again (shared.transfer.Download).
REPUBLISH_S = 0.8
# What a broker is taken to give to all its subscribers together in a second. Who asks while the first sending is still on its
# way to others must not make the broker send it once more to everybody: with a thousand devices that would never end.
FAN_OUT_BYTES_S = 50e6


class Repairs:
    """Whoever asks gets what all subscribers get: devices that miss the same chunk are served at once.

    The model was published at `now`.
    """

    def __init__(self, model: Manifest, now: float = -math.inf) -> None:
        self._model = model
        # Where the model is small or devices are few, the first who asks is served at once: a broker may retain nothing.
        self._published_at = now - REPUBLISH_S
        self._sent_at: dict[int, float] = {}

    def wanted(self, need: Need, now: float, waiting: int = 1) -> tuple[int, ...]:
        """Chunks to publish now; none for another model, for a bitmap that does not fit, or so soon after the last time.

        `waiting` devices do not have the model yet: for so many the last sending is under way.
        """
        if need.digest != self._model.digest:
            return ()
        try:
            missing = Bitmap.from_bytes(self._model.chunk_count, need.missing)
        except WireError:
            return ()
        pause_s = max(REPUBLISH_S, waiting * self._model.size_bytes / FAN_OUT_BYTES_S)
        wanted = tuple(i for i in missing if now >= self._sent_at.get(i, self._published_at) + pause_s)
        self._sent_at.update(dict.fromkeys(wanted, now))
        return wanted
