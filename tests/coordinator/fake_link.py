"""A link whose broker is a list."""

from __future__ import annotations


class RecordedLink:
    """What was published, in order; `idle` and `full` are set by the test."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, bool]] = []
        self.idle = True
        self.full = False

    def start(self) -> None:
        """Nothing to start."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Note a message, if there is room."""
        if not self.full:
            self.published.append((topic, payload, retain))
        return not self.full

    def subscribe(self, *filters: str) -> None:
        """Nobody publishes here."""

    def unsubscribe(self, *filters: str) -> None:
        """Nobody publishes here."""

    def stop(self) -> None:
        """Nothing to stop."""

    def retained(self) -> set[str]:
        """Topics on which a broker would hold something now."""
        held: dict[str, bytes] = {topic: payload for topic, payload, retain in self.published if retain}
        return {topic for topic, payload in held.items() if payload}
