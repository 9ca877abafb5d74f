"""The update on its way to the coordinator: offered, sent within the window, and held back while the owner wants that."""

from __future__ import annotations

from shared.messages import Ack, Body, Grant, Manifest, Offer, RetryAfter
from shared.transfer import SendChunk, Upload


class Outgoing:
    """One update. Each method returns what to say and to send now; while `held` that is nothing."""

    def __init__(self, manifest: Manifest, now: float, *, held: bool = False) -> None:
        self.manifest = manifest
        self.held = held
        self._upload = Upload(manifest, now)

    def on_message(self, body: Body, now: float) -> list[Offer | SendChunk]:
        """What the coordinator says of this update. WireError for a bitmap that does not fit."""
        if self.held:
            return []  # the grant goes to another device meanwhile; an offer asks for the next
        match body:
            case Grant():
                return self._upload.on_grant(body, now)
            case Ack():
                return self._upload.on_ack(body, now)
            case RetryAfter():
                self._upload.on_retry_after(body.delay_s, now)
        return []

    def reconnected(self, now: float) -> None:
        """What was in flight may be lost."""
        self._upload.on_reconnect(now)

    def go_on(self, now: float) -> list[Offer | SendChunk]:
        """No longer held: offer it at once."""
        self.held = False
        self.reconnected(now)
        return self.tick(now)

    def tick(self, now: float) -> list[Offer | SendChunk]:
        """Lets time pass."""
        return [] if self.held else self._upload.tick(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return None if self.held else self._upload.next_deadline()
