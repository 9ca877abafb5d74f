"""The interface between a run and its metrics: calls from the coordinator's thread, which must be cheap and raise nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fedpatch.coordinator.rounds.run_effects import Effect
from fedpatch.shared.wire.vitals import Vitals


class Observer(Protocol):
    """Receives the events of a run. Times are seconds of the monotonic clock."""

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """An effect was performed; effects that follow from it are reported later."""

    def sent(self, size_bytes: int) -> None:
        """A message was sent to a device."""

    def received(self, kind: str, size_bytes: int) -> None:
        """A message of a device arrived on a topic of `kind` (shared.wire.topics)."""

    def presence(self, device: str) -> None:
        """The presence of a device changed; the engine has the new state."""

    def vitals(self, device: str, vitals: Vitals, now: float) -> None:
        """The vitals of a device arrived."""

    def link(self, *, connected: bool) -> None:
        """The connection to the broker was lost or restored."""

    def look(self, now: float, *, waiting: int) -> None:
        """Called after every event and at least twice a second; `waiting` events are in the queue."""


class NullObserver:
    """An observer that ignores all events."""

    def _let_pass(self, *_: object, **__: object) -> None:
        pass

    performed = sent = received = presence = vitals = link = look = _let_pass


class Observers:
    """Passes each event on to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    @staticmethod
    def _pass_on(name: str) -> Callable[..., None]:
        def pass_on(self: Observers, *event: Any, **more: Any) -> None:
            for one in self._observers:
                getattr(one, name)(*event, **more)

        return pass_on

    performed, sent, received = _pass_on("performed"), _pass_on("sent"), _pass_on("received")
    presence, vitals, link, look = _pass_on("presence"), _pass_on("vitals"), _pass_on("link"), _pass_on("look")


def joined(*observers: Observer | None) -> Observer:
    """Return one observer for all that are not None; a single observer is returned itself."""
    there = [one for one in observers if one is not None]
    return there[0] if len(there) == 1 else Observers(there)
