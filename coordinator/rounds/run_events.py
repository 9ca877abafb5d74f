"""The events of a run engine: of devices, of the operator, of time, and completions of effects.

A completion event is the only sign that an effect has finished: `PublishModel` ends with `ModelPublished`, `StoreUpdate` with
`UpdateStored` or `UpdateRejected`, `AggregateUpdates` with `Aggregated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedpatch.shared.masking.group_sum import SummedReport
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import DeviceState, Envelope, Manifest, ModelDelta, UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason


@dataclass(frozen=True)
class RunStarted:
    """The run begins, or continues in a new epoch."""


@dataclass(frozen=True)
class DevicePresence:
    """A device published its presence, or the broker published its last will."""

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
    """Time has passed without another event. This event is due at `Engine.next_deadline` at the latest."""


@dataclass(frozen=True)
class LinkChanged:
    """The connection to the broker was made or lost. Without it no round opens, and no device counts as silent."""

    connected: bool


@dataclass(frozen=True)
class HoldsChanged:
    """The set of devices that are held back has changed; each is `quarantined` or `drained`."""

    holds: Mapping[str, str]


@dataclass(frozen=True)
class DevicesRevoked:
    """The set of devices with a revoked certificate has changed: they get no invitation and leave the open round."""

    devices: frozenset[str]


@dataclass(frozen=True)
class Interrupted:
    """The operator stops the run. Working devices are cancelled; a resume continues the open round."""


@dataclass(frozen=True)
class StopRequested:
    """The operator stops the run after its open round, or at once if none is open. A resume begins with the next round."""


@dataclass(frozen=True)
class Suspended:
    """The coordinator cannot continue for now. Devices continue to work and keep their updates until a resume.

    `handed_over`: the operator stops this coordinator, and a standby resumes.
    """

    handed_over: bool = False


@dataclass(frozen=True)
class ModelPublished:
    """Completion of PublishModel: the global model and the `deltas` that lead to it are on the broker.

    Attributes:
        manifest: The manifest of the model.
        deltas: The deltas, the oldest first.
        secure: In a masked run the terms of the round, which follow from the model's state.
        version: Completed rounds of the model.
        counted: The last round whose aggregate has a device's update, by device, where devices keep control variates.
        urls: URLs by digest, of the blobs that devices can fetch.
        content: `values_digest` of the tensors that a device decodes; "" where it is unknown.
    """

    manifest: Manifest
    deltas: Sequence[ModelDelta] = ()
    secure: SecureTerms | None = None
    version: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: str = ""


@dataclass(frozen=True)
class UpdateStored:
    """Completion of StoreUpdate: the bytes of an update are on disk, and its row is committed.

    Attributes:
        round: Number of the round.
        device: The device.
        digest: SHA-256 of the packed update.
        report: The device's report; None for a masked update.
    """

    round: int
    device: str
    digest: str
    report: UpdateReport | None


@dataclass(frozen=True)
class UpdateRejected:
    """Completion of StoreUpdate: the update failed a check and was not written."""

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
        pulls: The share of the change that was taken away, of the devices whose updates were pulled farthest.
        pull_quantiles: `p50`, `p90` and `max` of that share over all updates; empty if all count whole.
        privacy: Account of differential privacy (RoundRecord.privacy).
        figures: In a masked round the figures that its sums give.
        left_out: Devices of masked groups whose sum was impossible, and does not count.
    """

    bounded: Mapping[str, int] = field(default_factory=dict)
    bounded_devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pulls: Mapping[str, float] = field(default_factory=dict)
    pull_quantiles: Mapping[str, float] = field(default_factory=dict)
    privacy: Mapping[str, float | None] = field(default_factory=dict)
    figures: SummedReport | None = None
    left_out: tuple[str, ...] = ()


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
    | StopRequested
    | Suspended
    | ModelPublished
    | UpdateStored
    | UpdateRejected
    | Aggregated
)
