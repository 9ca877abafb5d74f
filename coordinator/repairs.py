"""Which chunks of the global model are published once more, for devices that miss them."""

from __future__ import annotations

import math

from shared.errors import WireError
from shared.messages import Manifest, Need
from shared.transfer import Bitmap

# Shorter than the pause after which a device asks again (shared.transfer.Download).
REPUBLISH_S = 0.8


class Repairs:
    """Whoever asks gets what all subscribers get: devices that miss the same chunk are served at once."""

    def __init__(self, model: Manifest) -> None:
        self._model = model
        self._sent_at: dict[int, float] = {}

    def wanted(self, need: Need, now: float) -> tuple[int, ...]:
        """Chunks to publish now; none for another model, for a bitmap that does not fit, or so soon after the last time."""
        if need.digest != self._model.digest:
            return ()
        try:
            missing = Bitmap.from_bytes(self._model.chunk_count, need.missing)
        except WireError:
            return ()
        wanted = tuple(i for i in missing if now >= self._sent_at.get(i, -math.inf) + REPUBLISH_S)
        self._sent_at.update(dict.fromkeys(wanted, now))
        return wanted
