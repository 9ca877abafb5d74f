"""One frozen dataclass per message of the wire, version 1 (docs/protocol.md).

Field types carry their limits, which the codec enforces before a message reaches any state machine. Durations travel
as seconds (`_s`), never as points in time: the clocks of devices cannot be trusted. Digests are lower-case SHA-256 hex.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from fedpatch.shared.wire.field_types import Count, Measure, Positive, Seconds, Text, Word
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, JobPhase, RefuseReason
from fedpatch.shared.wire.run_status import RunStatus
from fedpatch.shared.wire.vitals import Vitals

PROTOCOL_VERSION = 1
# How tensors may travel; the first is the default.
ENCODINGS = ("fp32+zstd", "fp16+zstd", "fp32", "fp16", "delta-bf16", "delta-int8", "delta-int4")
# Version 1 grows by features. A peer ignores keys and words that it does not know, so a program sends what is new only to a
# peer that lists the feature. docs/protocol.md documents each word.
# Features of the work request that this version's devices understand:
DEVICE_FEATURES: tuple[str, ...] = ("independent",)
(INDEPENDENT_FEATURE,) = DEVICE_FEATURES
# Features of the answers that this version's coordinator understands:
COORDINATOR_FEATURES: tuple[str, ...] = ("storage", "owner_limits")
STORAGE_FEATURE, OWNER_LIMITS_FEATURE = COORDINATOR_FEATURES
MAX_FEATURES = 32
MAX_CHUNKS = 65_536
MAX_DELTAS = 16
MAX_BLOB_BYTES = 2**31

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Features = Annotated[tuple[Word, ...], Meta(max_length=MAX_FEATURES)]
Bitmap = Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8)]


def is_delta(encoding: str) -> bool:
    """Whether tensors travel as differences to a base, which both sides must hold."""
    return encoding.startswith("delta-")


@dataclass(frozen=True)
class Manifest:
    """Announces a blob before its chunks; checked against ceilings before a byte is allocated.

    `digest` is the SHA-256 of the blob as it travels, `raw_bytes` its size when decompressed, `schema` that of its tensors.
    """

    digest: Digest
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_BLOB_BYTES)]
    chunk_bytes: Annotated[int, Meta(ge=1, le=MAX_BLOB_BYTES)]
    chunk_count: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]
    encoding: Word
    raw_bytes: Annotated[int, Meta(ge=1, le=MAX_BLOB_BYTES)]
    schema: Digest


@dataclass(frozen=True)
class TrainPlan:
    """LocalUpdate of a strategy (paper, Table 1), as data: no code crosses the wire.

    Either `steps` minibatches are taken, or, where it is 0, round(num_examples / batch_size) * `epochs`. `moments` names the
    optimizer moments that travel with the model. `seed` makes initial patch values and the order of examples repeatable.
    """

    client_optimizer: Word
    learning_rate: Annotated[float, Meta(gt=0.0, le=1e3)]
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    epochs: Annotated[int, Meta(ge=0, le=100_000)] = 1
    steps: Annotated[int, Meta(ge=0, le=100_000_000)] = 0
    beta_1: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.9
    beta_2: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.999
    epsilon: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-7
    moments: Annotated[tuple[Word, ...], Meta(max_length=8)] = ()
    seed: Count = 0

    def steps_for(self, num_examples: int) -> int:
        """Minibatches of a round: `steps`, or else round(num_examples / batch_size), at least 1, times `epochs`."""
        return self.steps or max(1, round(num_examples / self.batch_size)) * self.epochs


@dataclass(frozen=True)
class ModelDelta:
    """A step from one version of the global model to the next, for devices that hold the version `base`.

    A version is named by the digest of the manifest of its whole model. `content` is the digest of the tensors that
    the step leads to (shared.tensors.arrays), by which a device knows that it came to the same bits.
    """

    base: Digest
    content: Digest
    manifest: Manifest


@dataclass(frozen=True)
class WorkRequest:
    """Coordinator asks a device to take part in the round of the envelope. Sent again when in doubt; idempotent.

    `deltas` lead from an older version to `model`, the oldest first, each from the version that the one before leads to.
    A device that holds one of these versions needs only the rest of the way. `features` are COORDINATOR_FEATURES of the
    coordinator that asks. With `measure_independent` the report is to have `user_accuracy_independent`.
    """

    schema: Digest
    private: Text
    plan: TrainPlan
    model: Manifest
    encoding: Word
    chunk_bytes: Positive
    deadline_s: Seconds
    deltas: Annotated[tuple[ModelDelta, ...], Meta(max_length=MAX_DELTAS)] = ()
    features: Features = ()
    measure_independent: bool = False


@dataclass(frozen=True)
class Grant:
    """The device may upload `digest`, with at most `window` chunks unacknowledged; `have` marks chunks already here."""

    digest: Digest
    window: Annotated[int, Meta(ge=1, le=4096)]
    have: Bitmap


@dataclass(frozen=True)
class Ack:
    """Every chunk of `digest` that the coordinator has. Only this, never a PUBACK, moves the window."""

    digest: Digest
    have: Bitmap


@dataclass(frozen=True)
class Committed:
    """`digest` is on the coordinator's disk (after fsync): now the device may forget it, and rest for `rest_s`."""

    digest: Digest
    rest_s: Seconds = 0.0


@dataclass(frozen=True)
class Refused:
    """`digest` will never be taken."""

    digest: Digest
    reason: RefuseReason
    detail: Text = ""


@dataclass(frozen=True)
class RetryAfter:
    """All upload slots are taken; offer `digest` again after `delay_s`."""

    digest: Digest
    delay_s: Seconds


@dataclass(frozen=True)
class Cancel:
    """The round of the envelope is over for this device."""

    reason: Word


@dataclass(frozen=True)
class Accept:
    """The device takes part and begins to download."""

    num_examples: Positive


@dataclass(frozen=True)
class Decline:
    """The device does not take part: because of a `condition` of its owner's, where the reason is `unwilling` and one is named.

    Before `retry_after_s` have passed it would say the same again; 0: nobody can tell.
    """

    reason: DeclineReason
    detail: Text = ""
    condition: Condition | None = None
    retry_after_s: Seconds = 0.0


@dataclass(frozen=True)
class Need:
    """Chunks of the global model that have not arrived; at most a window of them is set."""

    digest: Digest
    missing: Bitmap


@dataclass(frozen=True)
class Progress:
    """Sign of life from a job: `done` of `total` steps or chunks of `phase`."""

    phase: JobPhase
    done: Count
    total: Count


@dataclass(frozen=True)
class Offer:
    """An update is ready. Sent again until the coordinator answers; idempotent by digest."""

    manifest: Manifest


@dataclass(frozen=True)
class Failed:
    """The device gives up on the round. An error's words may hold private names and values: they stay in its log.

    `condition` is what its owner's preferences missed, where the reason is `unwilling`.
    """

    reason: FailReason
    condition: Condition | None = None


@dataclass(frozen=True)
class CoordinatorState:
    """Retained presence of the coordinator; `boot` is new at each start, so an old last will can be told apart."""

    online: bool
    boot: Word


@dataclass(frozen=True)
class Claim:
    """A coordinator that is about to start asks whether another is at work, which then says that it is online."""

    boot: Word


@dataclass(frozen=True)
class TaskCapability:
    """A task that a device can train: its own schema and how much data it holds."""

    task: Word
    schema: Digest
    num_examples: Count


@dataclass(frozen=True)
class JobStatus:
    """The job a device is on, told with its presence so that a reconnect is not a restart."""

    run: Word
    epoch: Count
    round: Count
    phase: JobPhase


@dataclass(frozen=True)
class DeviceState:
    """Retained presence and capabilities of a device.

    `unwilling` is why it would decline now, or has paused its work; it tells anew when that changes. `features` are its
    DEVICE_FEATURES.
    """

    online: bool
    boot: Word
    version: Word = ""
    tasks: Annotated[tuple[TaskCapability, ...], Meta(max_length=64)] = ()
    encodings: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    job: JobStatus | None = None
    unwilling: Condition | None = None
    features: Features = ()


@dataclass(frozen=True)
class UpdateReport:
    """What travels inside an update's blob beside its tensors, and so under the same digest.

    `base` is the digest of the global model. User accuracies, in the unit of the task's metric, are of the personalised model;
    None if the device does not count. `user_accuracy_independent` is of a model that this device has trained on its own data
    alone; None where it was not asked for or could not be measured.
    """

    base: Digest
    num_examples: Count
    steps: Count
    train_loss: Measure
    user_accuracy_before: Measure | None
    user_accuracy_after: Measure | None
    download_s: Seconds
    train_s: Seconds
    user_accuracy_independent: Measure | None = None


DownBody = WorkRequest | Grant | Ack | Committed | Refused | RetryAfter | Cancel
UpBody = Accept | Decline | Need | Progress | Offer | Failed
StateBody = CoordinatorState | Claim | DeviceState | Vitals
Body = DownBody | UpBody | StateBody | RunStatus


@dataclass(frozen=True)
class Envelope:
    """What surrounds each message. `epoch` grows whenever the coordinator comes back, so that an answer to a dead one shows."""

    body: Body
    id: Count = 0
    task: Word = ""
    run: Word = ""
    epoch: Count = 0
    round: Count = 0
    version: int = field(default=PROTOCOL_VERSION)
