"""Everything that a run engine reacts to: events of devices, of the operator, of time, and completions of effects.

An effect that the engine waits for has finished when its completion event arrives, and in no other way: `PublishModel` ends
with `ModelPublished`, `StoreUpdate` with `UpdateStored` or `UpdateRejected`, `AggregateUpdates` with `Aggregated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedpatch.shared.wire.chunked_transfer import Chunk
from fedpatch.shared.wire.messages import DeviceState, Envelope, Manifest, ModelDelta, UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason


@dataclass(frozen=True)
class RunStarted:
    """The run begins, or goes on in a new epoch: the engine waits for devices."""


@dataclass(frozen=True)
class DevicePresence:
    """A device came, went, or came back."""

    device: str
    state: DeviceState


@dataclass(frozen=True)
class DeviceMessage:
    """A message from a device's `up` topic."""

    device: str
    envelope: Envelope


@dataclass(frozen=True)
class ChunkReceived:
    """A chunk of a device's update."""

    device: str
    chunk: Chunk


@dataclass(frozen=True)
class TimePassed:
    """Nothing happened but that time went on; due at `Engine.next_deadline` at the latest."""


@dataclass(frozen=True)
class LinkChanged:
    """The connection to the broker was made or lost. Without it no round opens, and no device counts as silent."""

    connected: bool


@dataclass(frozen=True)
class HoldsChanged:
    """The devices that are held back now, each with `quarantined` or `drained`."""

    holds: Mapping[str, str]


@dataclass(frozen=True)
class DevicesRevoked:
    """The devices whose certificates are revoked now: they are not asked, and leave the open round."""

    devices: frozenset[str]


@dataclass(frozen=True)
class Interrupted:
    """The operator stops the run: devices are released, and a resume continues the open round."""


@dataclass(frozen=True)
class Suspended:
    """The coordinator cannot go on for now: devices work on and keep their updates until a resume."""


@dataclass(frozen=True)
class ModelPublished:
    """Completion of PublishModel: the global model and the `deltas` that lead to it are on the broker."""

    manifest: Manifest
    deltas: Sequence[ModelDelta] = ()


@dataclass(frozen=True)
class UpdateStored:
    """Completion of StoreUpdate: the bytes of an update are on disk, and its row is committed."""

    round: int
    device: str
    digest: str
    report: UpdateReport


@dataclass(frozen=True)
class UpdateRejected:
    """Completion of StoreUpdate: the update failed a check, and nothing of it was written."""

    round: int
    device: str
    digest: str
    reason: RefuseReason
    detail: str


@dataclass(frozen=True)
class Aggregated:
    """Completion of AggregateUpdates: the next global model is computed.

    Attributes:
        bounded: Number of updates that met each bound.
        bounded_devices: The bounds that the update of a device met (coordinator.aggregation.aggregate).
    """

    bounded: Mapping[str, int] = field(default_factory=dict)
    bounded_devices: Mapping[str, Sequence[str]] = field(default_factory=dict)


Event = (
    RunStarted
    | DevicePresence
    | DeviceMessage
    | ChunkReceived
    | TimePassed
    | LinkChanged
    | HoldsChanged
    | DevicesRevoked
    | Interrupted
    | Suspended
    | ModelPublished
    | UpdateStored
    | UpdateRejected
    | Aggregated
)
