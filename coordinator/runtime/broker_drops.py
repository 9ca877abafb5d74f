"""Messages that the broker has dropped, as mosquitto counts them in a topic below `$SYS`.

A broker drops messages for a client whose queue is full, although their sender got an acknowledgement. fedpatch requests
missing parts again, so a round only takes longer.
"""

from __future__ import annotations

from fedpatch.shared.wire.topics import BROKER_DROPS, DROPS_REMEDY

_PAUSE_S = 60.0


class BrokerDrops:
    """Counts the dropped messages since the first count; the link's thread calls `note`, the run's thread `take`."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._dropped = self._reported = 0
        self._report_at = 0.0

    def note(self, topic: str, payload: bytes) -> bool:
        """Note a count of the broker. Returns whether the topic is that of the count."""
        if topic != BROKER_DROPS:
            return False
        if payload.isdigit() and len(payload) < 20:
            count = int(payload)
            if self._count is not None:
                self._dropped += count - self._count if count >= self._count else count  # the broker has restarted
            self._count = count
        return True

    def take(self, now: float) -> str:
        """Return a line about messages that were dropped since the last line, at most once a minute; "" for none."""
        if self._dropped == self._reported or now < self._report_at:
            return ""
        self._report_at = now + _PAUSE_S
        new, self._reported = self._dropped - self._reported, self._dropped
        return f"the broker dropped {new} messages ({self._reported} in this run), which are requested again: {DROPS_REMEDY}"
