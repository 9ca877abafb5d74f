"""What a run tells whoever counts along: a few calls from the coordinator's thread, which must be cheap and raise nothing."""

from __future__ import annotations

from typing import Protocol

from fedpatch.coordinator.rounds.run_effects import Effect
from fedpatch.shared.wire.vitals import Vitals


class Observer(Protocol):
    """Sees a run go by. All times are seconds of the coordinator's monotonic clock."""

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """An effect was performed; the effects that follow from it come later."""

    def sent(self, size_bytes: int) -> None:
        """A message went to a device."""

    def received(self, kind: str, size_bytes: int) -> None:
        """A message of a device came, on a topic of `kind` (shared.wire.topics)."""

    def presence(self, device: str) -> None:
        """A device told of itself; the engine's fleet knows what."""

    def vitals(self, device: str, vitals: Vitals, now: float) -> None:
        """A device told how it is, which nobody else wants to know."""

    def link(self, *, connected: bool) -> None:
        """The broker went or came back."""

    def look(self, now: float, *, waiting: int) -> None:
        """Called after every event, and at least twice a second: `waiting` events are still to be taken."""


class NullObserver:
    """An observer for runs that nobody counts along with."""

    def _let_pass(self, *_: object, **__: object) -> None:
        pass

    performed = sent = received = presence = vitals = link = look = _let_pass
