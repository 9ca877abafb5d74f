"""Effects: the actions that a run engine requests, in order. An EffectHandler runs them and returns completion events.

The product's handler is coordinator.runtime.effect_runner; simulations, benchmarks and tests have their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.rounds.round_journal import MaskingEntry, RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_events import Event
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import Envelope, Manifest
from fedpatch.shared.wire.reason_codes import RefuseReason


@dataclass(frozen=True)
class SendMessage:
    """Publish a message on a device's `dn` topic."""

    device: str
    envelope: Envelope


@dataclass(frozen=True)
class PublishModel:
    """Pack the global model, publish its chunks and those of the deltas that lead to it; then ModelPublished.

    Attributes:
        round: Number of the round.
        chunks: Whether a device of the round cannot fetch by URL and so needs chunks in any case.
        trains: False in an evaluate round, which leaves the base of a masked run as it is.
    """

    round: int
    chunks: bool = True
    trains: bool = True


@dataclass(frozen=True)
class SaveJournal:
    """Write the journal of a round before its first invitation."""

    journal: RoundJournal


@dataclass(frozen=True)
class SaveGroupSteps:
    """Write steps of a masked round, before the messages that depend on them."""

    round: int
    entries: tuple[MaskingEntry, ...]


@dataclass(frozen=True)
class SaveSpentTime:
    """Write the seconds of the deadline that the open round has used, at the end of a run that can be resumed."""

    spent_s: float


@dataclass(frozen=True)
class ResendChunks:
    """Publish chunks of the current model, or of a delta that leads to it, again."""

    digest: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class CheckLink:
    """Make the link to the broker anew unless the broker answers; then LinkChanged.

    Attributes:
        round: Number of the round in which no device was heard.
        within_s: Time for the broker's answer, in seconds.
    """

    round: int
    within_s: float


@dataclass(frozen=True)
class RetractModel:
    """Clear the retained chunks of the current model on the broker."""


@dataclass(frozen=True)
class MaskedOrigin:
    """Reference for the check of a masked update.

    Attributes:
        context: The context of its device's group; empty for the sum of a site.
        terms: The terms of the round.
    """

    context: bytes
    terms: SecureTerms


@dataclass(frozen=True)
class StoreUpdate:
    """Check an update and write it to disk; then UpdateStored or UpdateRejected.

    Attributes:
        round: Number of the round.
        device: The device.
        manifest: The manifest of its offer.
        blob: The packed update.
        masked: Reference for the form of a masked update; None in other rounds.
        work: The carried work that it results from; None for an update of the round itself.
    """

    round: int
    device: str
    manifest: Manifest
    blob: bytes
    masked: MaskedOrigin | None = None
    work: CarriedWork | None = None

    @property
    def base_round(self) -> int:
        """The number of the round of its request, under which the update is stored."""
        return self.round if self.work is None else self.work.round


@dataclass(frozen=True)
class AggregateUpdates:
    """Compute the next global model from the stored updates of these devices; then Aggregated. SaveRecord saves the model.

    Attributes:
        round: Number of the round.
        devices: The devices whose updates count, sorted.
        groups: The open groups of a masked round, which these devices are in.
        terms: The terms of a masked round.
        sums: In a masked round the relays among these devices. Their updates are the sums of their sites.
        carried: Carried work by device, for devices whose updates are of earlier rounds.
    """

    round: int
    devices: tuple[str, ...]
    groups: tuple[OpenGroup, ...] = ()
    terms: SecureTerms | None = None
    sums: tuple[str, ...] = ()
    carried: Mapping[str, CarriedWork] = field(default_factory=dict)


@dataclass(frozen=True)
class SaveRecord:
    """Write the record of a round that is over, with the new global model in one checkpoint.

    Attributes:
        record: The record.
        carried: Work that the next round may take, by device.
        rest_s: Seconds until the next round may begin by `round_interval_s`.
    """

    record: RoundRecord
    carried: Mapping[str, CarriedWork] = field(default_factory=dict)
    rest_s: float = 0.0


@dataclass(frozen=True)
class CountEvent:
    """Add to a counter of a device.

    Attributes:
        device: The device; "" for an unknown one.
        what: The counter.
        reason: The reason.
        detail: Details, for the operator.
        times: The number of events.
        leaves: Whether the device has left the count of the open round without an offence.
    """

    device: str
    what: str
    reason: str = ""
    detail: str = ""
    times: int = 1
    leaves: bool = False


@dataclass(frozen=True)
class ExcludeDevice:
    """Write that this run does not ask a device again, before anything shows the refusal of its update.

    Attributes:
        device: The device.
        reason: Its offence (coordinator.cohort.exclusion).
    """

    device: str
    reason: RefuseReason


@dataclass(frozen=True)
class EndRun:
    """The run is over."""

    reason: Stopped
    detail: str


Effect = (
    SendMessage
    | PublishModel
    | SaveJournal
    | SaveGroupSteps
    | SaveSpentTime
    | ResendChunks
    | RetractModel
    | CheckLink
    | StoreUpdate
    | AggregateUpdates
    | SaveRecord
    | CountEvent
    | ExcludeDevice
    | EndRun
)


class EffectHandler(Protocol):
    """Runs effects: in the product with files and a broker, in a simulation with neither."""

    def run_effect(self, effect: Effect) -> Iterable[Event]:
        """Run one effect.

        Returns:
            The completion events that are available now. Iterate to the end: the result may be a generator that makes an event
            only after the engine has handled the previous event.
        """
