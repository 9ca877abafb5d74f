"""What the engine wants done; coordinator.service does it, in order, and reports back where a line says so."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.ledger import Ledger
from coordinator.records import RoundRecord
from coordinator.run_spec import Stopped
from shared.messages import Envelope, Manifest


@dataclass(frozen=True)
class Send:
    """Publish a message on a device's `dn` topic."""

    device: str
    envelope: Envelope


@dataclass(frozen=True)
class PublishModel:
    """Pack the global model and publish its chunks, and those of steps that lead to it; then `Engine.model_published`."""

    round: int


@dataclass(frozen=True)
class Open:
    """Keep the ledger of a round that begins, or goes on, before anybody is invited."""

    ledger: Ledger


@dataclass(frozen=True)
class Pause:
    """The operator stops: the open round has used `spent_s` of its deadline, and uses no more until it is taken up again."""

    spent_s: float


@dataclass(frozen=True)
class Republish:
    """Publish these chunks of the current model, or of a step to it, again."""

    digest: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class RetractModel:
    """Take the current model's chunks off the broker."""


@dataclass(frozen=True)
class Store:
    """Check an update and make it durable; then `Engine.stored` or `Engine.refused`."""

    round: int
    device: str
    manifest: Manifest
    blob: bytes


@dataclass(frozen=True)
class Aggregate:
    """Take no more updates; make the new global model from these devices' stored ones, save it; then `Engine.aggregated`."""

    round: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """Keep the record of a round that is over."""

    record: RoundRecord


@dataclass(frozen=True)
class Count:
    """Add to a device's counters, `times` over."""

    device: str
    what: str
    reason: str = ""
    detail: str = ""
    times: int = 1


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    reason: Stopped
    detail: str


Effect = Send | PublishModel | Open | Pause | Republish | RetractModel | Store | Aggregate | Record | Count | Finish
