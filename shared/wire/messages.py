"""The messages of protocol version 1 (docs/reference/protocol.md), one frozen dataclass each.

Field types carry their limits. The codec enforces them before a message reaches a state machine. A message holds durations
in seconds (`_s`), never points in time, because the clock of a device may be wrong. A digest is a SHA-256 in 64 lower-case
hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from fedpatch.shared.wire.features import MAX_FEATURES
from fedpatch.shared.wire.field_types import Count, Measure, Positive, Seconds, Text, Word
from fedpatch.shared.wire.masking_messages import (
    SUM_ENCODING,
    Agreed,
    Agreement,
    Codes,
    Inbox,
    MaskingKeys,
    Reveal,
    RevocationsDer,
    Roster,
    SecureTerms,
    Shares,
    Unmask,
)
from fedpatch.shared.wire.plan_terms import (
    CONTROL,
    PLAN_TERMS,
    EpochCount,
    PersonalCopy,
    Phases,
    StepCount,
    Strength,
    TrainPhase,
)
from fedpatch.shared.wire.privacy_messages import PrivacyTerms
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailCause, FailReason, JobPhase, RefuseReason
from fedpatch.shared.wire.run_status import RunStatus
from fedpatch.shared.wire.vitals import Vitals

PROTOCOL_VERSION = 1
# Encodings of tensors (shared.tensors.encodings); the first is the default.
ENCODINGS = (
    "fp32+zstd",
    "fp16+zstd",
    "fp32",
    "fp16",
    "delta-bf16",
    "delta-int8",
)
MAX_PATH = 8
MAX_CHUNKS = 65_536
MAX_DELTAS = 16
MAX_BLOB_BYTES = 2**31
MAX_URL = 2000  # characters; each is one byte of ASCII, and the codec takes no longer string

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Features = Annotated[tuple[Word, ...], Meta(max_length=MAX_FEATURES)]
Path = Annotated[tuple[Word, ...], Meta(max_length=MAX_PATH)]
Bitmap = Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8)]
MAX_MEMBERS = 1_000_000
Members = Annotated[int, Meta(ge=1, le=MAX_MEMBERS)]
"""The devices that a relay speaks for. Other devices leave the field out, which keeps the bytes of earlier versions."""


def members_field(count: int) -> int | UnsetType:
    """Return the value of a field `members`: UNSET for one device."""
    return UNSET if count == 1 else count


def is_delta(encoding: str) -> bool:
    """Return whether `encoding` sends differences to base tensors, which both sides must hold."""
    return encoding.startswith("delta-")


@dataclass(frozen=True)
class Manifest:
    """Announcement of a blob, sent before its chunks and checked against limits before memory is allocated.

    Attributes:
        digest: SHA-256 of the blob as it is sent.
        size_bytes: Size of the blob as it is sent.
        chunk_bytes: Data bytes of each chunk; the last chunk may have fewer.
        chunk_count: Number of chunks.
        encoding: One of ENCODINGS.
        raw_bytes: Size of the blob when decompressed.
        schema: Digest of the schema of its tensors.
        url: Where the blob can be fetched too, of a request to a device with URL_FEATURE. It may hold a signature, so it is in
            no log. It is not compared: it is the place of a blob, not its identity.
    """

    digest: Digest
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_BLOB_BYTES)]
    chunk_bytes: Annotated[int, Meta(ge=1, le=MAX_BLOB_BYTES)]
    chunk_count: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]
    encoding: Word
    raw_bytes: Annotated[int, Meta(ge=1, le=MAX_BLOB_BYTES)]
    schema: Digest
    url: Annotated[str, Meta(max_length=MAX_URL)] | UnsetType = field(default=UNSET, compare=False, repr=False)

    def at(self, url: str | None) -> Manifest:
        """Return the manifest with this URL; None for none."""
        return replace(self, url=url or UNSET)


@dataclass(frozen=True)
class TrainPlan:
    """The LocalUpdate of a strategy (paper, Table 1) as data; no code is sent.

    Attributes:
        client_optimizer: Name of the optimizer.
        learning_rate: Step size of the optimizer.
        batch_size: Examples in a minibatch.
        epochs: Passes over the training data, where `steps` is 0.
        steps: Minibatches in a round; 0: `epochs` decides (`steps_for`).
        beta_1: Decay of the optimizer's first moment.
        beta_2: Decay of the optimizer's second moment.
        epsilon: Term that the optimizer adds to a denominator.
        moments: Optimizer moments that are shared, such as `exp_avg`; with `control` devices keep control variates (SCAFFOLD),
            and only those with that word in `features` are asked.
        seed: Seed of initial patch values and of the order of examples.
        prox: mu of FedProx's term mu / 2 * |w - global|^2 over the values that travel. This and the following fields are left
            out where they are not set; each is a feature of devices, by its name.
        phases: Parts of a round, one after another, in place of `epochs` and `steps`.
        personal: The second copy of the model that stays on the device.
        finish: Phases in which the device trains a copy of the global model, which is then its personal model.

    Example:
        >>> TrainPlan("sgd", learning_rate=0.1, batch_size=20, epochs=2).steps_for(num_examples=100)
        10
    """

    client_optimizer: Word
    learning_rate: Annotated[float, Meta(gt=0.0, le=1e3)]
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    epochs: EpochCount = 1
    steps: StepCount = 0
    beta_1: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.9
    beta_2: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.999
    epsilon: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-7
    moments: Annotated[tuple[Word, ...], Meta(max_length=8)] = ()
    seed: Count = 0
    prox: Strength | UnsetType = UNSET
    phases: Phases | UnsetType = UNSET
    personal: PersonalCopy | UnsetType = UNSET
    finish: Phases | UnsetType = UNSET

    @property
    def terms(self) -> dict[str, Any]:
        """The fields of PLAN_TERMS that are set, by name."""
        return {name: value for name in PLAN_TERMS if (value := getattr(self, name)) is not UNSET}

    @property
    def kind(self) -> str:
        """Words for the terms without their numbers, "" without terms; a device's patch belongs to one kind of plan.

        `finish` has no word, since it changes no patch.
        """
        words = ["prox"] if self.prox else []
        words += [",".join(one.train for one in self.phases)] if self.phases else []
        return " ".join([*words, self.personal.kind] if self.personal else words)

    @property
    def parts(self) -> tuple[TrainPhase, ...]:
        """The phases; without any, one in which all values learn."""
        return self.phases or (TrainPhase("all", self.epochs, self.steps),)

    @property
    def plain(self) -> TrainPlan:
        """The plan without its terms."""
        unset: dict[str, Any] = dict.fromkeys(self.terms, UNSET)
        return replace(self, **unset)

    @property
    def has_controls(self) -> bool:
        """Return whether devices keep control variates."""
        return CONTROL in self.moments

    @property
    def finishing(self) -> TrainPlan:
        """The plan of the finishing: that of `finish`, without other terms and without moments that travel."""
        return replace(self.plain, moments=(), phases=self.finish)

    def steps_for(self, num_examples: int) -> int:
        """Return the minibatches of a round on so many training examples."""
        return sum(part.steps_for(num_examples, self.batch_size) for part in self.parts)


@dataclass(frozen=True)
class ModelDelta:
    """The difference from one version of the global model to the next, for devices that hold the older version.

    Attributes:
        base: The older version, named by `Manifest.digest` of its whole model.
        content: `values_digest` (shared.tensors.arrays) of the newer version's tensors. A device checks with it that it
            computed the same bits.
        manifest: The blob that holds the difference.
    """

    base: Digest
    content: Digest
    manifest: Manifest


@dataclass(frozen=True)
class WorkRequest:
    """Invitation of a device to the round that the envelope names. It is idempotent, and sent again when an answer is late.

    Attributes:
        schema: Digest of the schema of the whole model.
        private: Text form of the patch policy.
        plan: Local training.
        model: The whole global model.
        encoding: Encoding of the update, one of ENCODINGS; where `secure` is set one of MASKED_ENCODINGS, or SUM_ENCODING for a
            relay.
        chunk_bytes: Data bytes of each chunk of the update.
        deadline_s: Time left until the round ends.
        deltas: Differences that lead from an older version to `model`, the oldest first, without a gap. A device that holds
            one of these versions downloads only the differences that follow it.
        features: COORDINATOR_FEATURES of the sender.
        measure_independent: Whether the report shall have `user_accuracy_independent`.
        privacy: Terms of differential privacy; None without. A device without PRIVACY_FEATURE is never asked with terms, and
            one without MASKED_PRIVACY_FEATURE never with those of Skellam noise.
        secure: Terms of secure aggregation; None: the update is not masked. A device without MASKED_FEATURE is never asked for
            a masked update, and a relay without SUMS_FEATURE never for the sum of its site.
        evaluate: True asks to measure the model with the device's patch, without training; the answer is `Evaluation`. A device
            without EVALUATE_FEATURE is never asked. Left out of other requests, whose bytes stay those of earlier versions.
        counted: By a plan with control variates the last round of the run whose aggregate has an update of this device, 0 for
            none: the device goes on with the control variate after it. Left out of other requests.
        leader_epoch: As in CoordinatorState; a device ignores a request with a lower one than it has seen.
        content: `values_digest` (shared.tensors.arrays) of the model's tensors, which the device checks however the model came:
            whole, by differences, or held from an earlier round. A masked update is never asked for without. Earlier versions
            leave it out.
        revocations: The CA's list of revoked certificates in DER (shared.masking.revocation), where keys must be signed. Left
            out where the coordinator has none.
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
    privacy: PrivacyTerms | None = None
    secure: SecureTerms | None = None
    evaluate: bool | UnsetType = UNSET
    counted: Count | UnsetType = UNSET
    leader_epoch: Count | UnsetType = UNSET
    content: Digest | UnsetType = UNSET
    revocations: RevocationsDer | UnsetType = UNSET

    @property
    def evaluates(self) -> bool:
        """True if the device shall only measure."""
        return self.evaluate is True

    def at(self, urls: Mapping[str, str]) -> WorkRequest:
        """Return the request with the URLs of these blobs, by digest, and no others."""
        deltas = tuple(replace(one, manifest=one.manifest.at(urls.get(one.manifest.digest))) for one in self.deltas)
        return replace(self, model=self.model.at(urls.get(self.model.digest)), deltas=deltas)

    @property
    def masks(self) -> bool:
        """True if the device shall mask its update. A relay sends the sum of its site, whose devices mask theirs."""
        return self.secure is not None and self.encoding != SUM_ENCODING


@dataclass(frozen=True)
class Grant:
    """Permission to upload `digest`, with at most `window` unacknowledged chunks. `have`: the chunks already received."""

    digest: Digest
    window: Annotated[int, Meta(ge=1, le=4096)]
    have: Bitmap


@dataclass(frozen=True)
class Ack:
    """All chunks of `digest` that the coordinator has received. Only this message, never a PUBACK, moves the window."""

    digest: Digest
    have: Bitmap


@dataclass(frozen=True)
class Committed:
    """The update `digest` is on the coordinator's disk (after fsync). The device may delete it, and rest for `rest_s`."""

    digest: Digest
    rest_s: Seconds = 0.0


@dataclass(frozen=True)
class Refused:
    """The coordinator will never accept the update `digest`."""

    digest: Digest
    reason: RefuseReason
    detail: Text = ""


@dataclass(frozen=True)
class RetryAfter:
    """All upload slots are in use: the device shall offer `digest` again after `delay_s`."""

    digest: Digest
    delay_s: Seconds


@dataclass(frozen=True)
class Cancel:
    """The round that the envelope names is over for this device."""

    reason: Word


@dataclass(frozen=True)
class Accept:
    """The device takes part in the round and begins to download.

    Attributes:
        num_examples: Training examples; 1 where the update is masked, for then the number travels in the sum only.
        keys: Keys of the device where the request has `secure`.
    """

    num_examples: Positive
    keys: MaskingKeys | None = None


@dataclass(frozen=True)
class Decline:
    """The device does not take part in the round.

    Attributes:
        reason: Why it declines.
        detail: Explanation for people.
        condition: The owner's condition that fails, where the reason is `unwilling`.
        retry_after_s: Time before which the answer would be the same; 0: unknown.
    """

    reason: DeclineReason
    detail: Text = ""
    condition: Condition | None = None
    retry_after_s: Seconds = 0.0


@dataclass(frozen=True)
class Need:
    """Request for chunks of the blob `digest` that have not arrived; `missing` has at most one window of them."""

    digest: Digest
    missing: Bitmap


@dataclass(frozen=True)
class Progress:
    """Sign of life of a job: `done` of `total` steps or chunks in this `phase`."""

    phase: JobPhase
    done: Count
    total: Count


@dataclass(frozen=True)
class Offer:
    """The device has an update to upload. It offers again until the coordinator answers; idempotent by digest.

    Attributes:
        manifest: The update.
        codes: Of a masked update: for each other member of the masking set the device's code over this set, empty for the
            rest; in a strict group one signature. Left out of other offers.
    """

    manifest: Manifest
    codes: Codes | UnsetType = UNSET


@dataclass(frozen=True)
class Failed:
    """The device gives up on the round.

    The message has no error text, which could hold private names and values; the error is in the device's log. `condition` is
    the owner's condition that fails, where the reason is `unwilling`. `cause` is the coarse cause of the reason `training`.
    """

    reason: FailReason
    condition: Condition | None = None
    cause: FailCause | UnsetType = UNSET


@dataclass(frozen=True)
class CoordinatorState:
    """Retained presence of the coordinator. `boot` is new at each start, which identifies the last will of an earlier start.

    `leader_epoch` numbers the coordinators that took turns in leading a fleet with standbys; left out by others.
    """

    online: bool
    boot: Word
    leader_epoch: Count | UnsetType = UNSET


@dataclass(frozen=True)
class Claim:
    """Question of a starting coordinator whether another one runs; a running coordinator answers with CoordinatorState."""

    boot: Word


@dataclass(frozen=True)
class TaskCapability:
    """A task that a device can train, the digest of its model's schema, and the number of training examples it holds.

    `members` are the devices that a relay speaks for; their examples are counted together.
    """

    task: Word
    schema: Digest
    num_examples: Count
    members: Members | UnsetType = UNSET

    @property
    def num_members(self) -> int:
        """The devices behind this one; 1 for a device that speaks for itself."""
        return self.members or 1


@dataclass(frozen=True)
class JobStatus:
    """The current job of a device. It is part of DeviceState, which distinguishes a reconnect from a restart."""

    run: Word
    epoch: Count
    round: Count
    phase: JobPhase


@dataclass(frozen=True)
class DeviceState:
    """Retained presence and capabilities of a device.

    Attributes:
        online: Whether the device is connected; its last will has False.
        boot: New at each start of the agent.
        version: Version of fedpatch.
        tasks: Tasks that the device can train.
        encodings: Encodings that the device can decode.
        job: The current job, if any.
        unwilling: The owner's condition for which it would decline now or has paused its work, if any. The device publishes
            its state again when this changes.
        features: Its DEVICE_FEATURES, MASKED_FEATURE where it can mask an update, SIGNED_FEATURE where it can sign keys,
            SUMS_FEATURE of a relay, URL_FEATURE where it fetches models by URL, and SHARED_ID_FEATURE while another agent
            uses its id.
        path: Of a relay: its id, and the path of a relay below it, the longest of several. A relay that finds its own id in the
            path of a device of its site is part of a circle. Other devices leave it out.
    """

    online: bool
    boot: Word
    version: Word = ""
    tasks: Annotated[tuple[TaskCapability, ...], Meta(max_length=64)] = ()
    encodings: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    job: JobStatus | None = None
    unwilling: Condition | None = None
    features: Features = ()
    path: Path | UnsetType = UNSET


@dataclass(frozen=True)
class UpdateReport:
    """Report of local training, inside the update's blob beside its tensors, and so covered by the same digest.

    User accuracies are in the unit of the task's metric, measured on test data.

    Attributes:
        base: Digest of the global model that training began with.
        num_examples: Training examples.
        steps: Minibatches taken.
        train_loss: Mean training loss.
        user_accuracy_before: Of the global model with the device's patch, before training; None if it was not measured.
        user_accuracy_after: The same after training.
        download_s: Duration of the download.
        train_s: Duration of training.
        user_accuracy_independent: Of a model that the device trained on its own data alone; None if that was not
            requested or could not be measured.
        members: Devices whose mean a relay reports; a request without MEMBERS_FEATURE gets none.
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
    members: Members = 1

    @property
    def plain(self) -> dict[str, Any]:
        """The report as it travels: with the keys of earlier versions where it has no newer figure."""
        plain = asdict(self)
        if self.user_accuracy_independent is None:
            del plain["user_accuracy_independent"]
        if self.members == 1:
            del plain["members"]
        return plain


@dataclass(frozen=True)
class Evaluation:
    """The answer to a request with `evaluate`, in place of an update.

    Attributes:
        base: Digest of the global model.
        user_accuracy: Of the global model with the device's patch, on test data; None if the device's data do not count.
        num_examples: Test examples.
        seconds: Duration of the measurement.
        members: Devices whose mean a relay reports: those with a user accuracy. A request without MEMBERS_FEATURE gets none.
    """

    base: Digest
    user_accuracy: Measure | None
    num_examples: Count
    seconds: Seconds
    members: Members | UnsetType = UNSET


DownBody = WorkRequest | Grant | Ack | Committed | Refused | RetryAfter | Cancel | Roster | Inbox | Unmask | Agreed
UpBody = Accept | Decline | Need | Progress | Offer | Evaluation | Failed | Shares | Agreement | Reveal
StateBody = CoordinatorState | Claim | DeviceState | Vitals
Body = DownBody | UpBody | StateBody | RunStatus


@dataclass(frozen=True)
class Envelope:
    """A message and its address: task, run and round.

    `epoch` grows at each start of the coordinator, which identifies an answer to an earlier start. `id` counts the messages of
    one sender.
    """

    body: Body
    id: Count = 0
    task: Word = ""
    run: Word = ""
    epoch: Count = 0
    round: Count = 0
    version: int = field(default=PROTOCOL_VERSION)
