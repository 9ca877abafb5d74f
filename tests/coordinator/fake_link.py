"""A link whose broker is a list."""

from __future__ import annotations


class RecordedLink:
    """A link that records published messages in order; the test sets `idle` and `full`."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, bool]] = []
        self.idle = True
        self.full = False

    def start(self) -> None:
        """Do nothing."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Record a message, unless the link is full."""
        if not self.full:
            self.published.append((topic, payload, retain))
        return not self.full

    def subscribe(self, *filters: str) -> None:
        """Do nothing: this link receives no messages."""

    def unsubscribe(self, *filters: str) -> None:
        """Do nothing: this link receives no messages."""

    def check(self, within_s: float) -> None:
        """Do nothing: this link answers always."""

    def stop(self) -> None:
        """Do nothing."""

    def retained(self) -> set[str]:
        """Return the topics for which a broker would retain a message now."""
        held: dict[str, bytes] = {topic: payload for topic, payload, retain in self.published if retain}
        return {topic for topic, payload in held.items() if payload}
