"""Effects: what the engine wants done, in order. An EffectHandler runs them and returns completion events.

The product's handler is coordinator.runtime.effect_runner; simulations, benchmarks and tests have their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fedpatch.coordinator.rounds.participant_transitions import RoundJournal
from fedpatch.coordinator.rounds.run_events import Event
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.rounds.run_spec import Stopped
from fedpatch.shared.wire.messages import Envelope, Manifest


@dataclass(frozen=True)
class SendMessage:
    """Publish a message on a device's `dn` topic."""

    device: str
    envelope: Envelope


@dataclass(frozen=True)
class PublishModel:
    """Pack the global model and publish its chunks, and those of steps that lead to it; then ModelPublished."""

    round: int


@dataclass(frozen=True)
class SaveJournal:
    """Keep the ledger of a round that begins, or goes on, before anybody is invited."""

    ledger: RoundJournal


@dataclass(frozen=True)
class SavePause:
    """The operator stops: the open round has used `spent_s` of its deadline, and uses no more until it is taken up again."""

    spent_s: float


@dataclass(frozen=True)
class ResendChunks:
    """Publish these chunks of the current model, or of a step to it, again."""

    digest: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class RetractModel:
    """Take the current model's chunks off the broker."""


@dataclass(frozen=True)
class StoreUpdate:
    """Check an update and make it durable; then UpdateStored or UpdateRejected."""

    round: int
    device: str
    manifest: Manifest
    blob: bytes


@dataclass(frozen=True)
class AggregateUpdates:
    """Take no more updates; make the new global model from these devices' stored ones, save it; then Aggregated."""

    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class SaveRecord:
    """Keep the record of a round that is over."""

    record: RoundRecord


@dataclass(frozen=True)
class CountEvent:
    """Add to a device's counters, `times` over."""

    device: str
    what: str
    reason: str = ""
    detail: str = ""
    times: int = 1


@dataclass(frozen=True)
class EndRun:
    """The run is over."""

    reason: Stopped
    detail: str


Effect = (
    SendMessage
    | PublishModel
    | SaveJournal
    | SavePause
    | ResendChunks
    | RetractModel
    | StoreUpdate
    | AggregateUpdates
    | SaveRecord
    | CountEvent
    | EndRun
)


class EffectHandler(Protocol):
    """Runs effects: the product with files and a broker, a simulation with neither."""

    def run_effect(self, effect: Effect) -> Iterable[Event]:
        """Run one effect; return the completion events that are there by now.

        The result must be iterated to its end: an event may be made only when it is asked for, after the engine has handled
        the one before it.
        """
