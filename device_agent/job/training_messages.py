"""Messages between the agent and its training process, over a pair of pipes.

The agent's process has the network and no private value; the training process has the data, the patch and torch, but no
network. A frame is four bytes of length, big-endian, and a msgpack list of the message's name and its fields. Tensors travel
in files, but a small downloaded model in its frame. Every `TrainCommand` is answered exactly once: by `Trained`, `Evaluated`,
`TrainFailed`, `TrainCancelled`, or by the end of the process. Every `MaskCommand` is answered in the same way by `Masked` or
`TrainFailed`.
A `Trained` with `model_follows`, and every `MakeModel`, is followed by `ModelMade`. `ModelHeld` may come at any time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from fedpatch.device_agent.job.job_effects import ContinueTraining, JobKey, PauseTraining
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.tensors.schema import NOTHING_FROZEN, Frozen, TensorSpec
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import Evaluation, Manifest, ModelDelta, TrainPlan, UpdateReport
from fedpatch.shared.wire.privacy_messages import PrivacyTerms
from fedpatch.shared.wire.reason_codes import FailCause, FailReason

MAX_FRAME_BYTES = 2**26
_LENGTH = struct.Struct(">I")

Message = TypeVar("Message")


@dataclass(frozen=True)
class WorkerSetup:
    """First command: the task and the data to train on.

    Attributes:
        task_ref: The task, from the device's own configuration, never from the network.
        data: Data of this device, from the same configuration.
        data_root: Directory of data sets.
        patch_dir: Directory of the patches.
        device_id: Name of the device.
        threads: Threads of torch.
        nice: Niceness of the process (device_agent.training.resource_limits).
        max_memory_mib: Memory limit of the process; 0 for none.
        models_dir: Directory in which personal models are staged; "" to make none.
        keep_margin: How much worse than the current personal model a new one may be, in the task's metric.
        held_dir: Directory in which the global model is held between rounds; "" for nowhere.
        private: The owner's policy for the tensors that must stay on the device; "" for the default.
        max_steps: Most training steps of a round; 0 for no limit.
        max_epochs: Most passes over the data in a round; 0 for no limit.
        alone_every: Rounds of this device from one training alone to the next (device_agent.training.local_only_training); 0
            to train alone only if a request measures it.
        require_filter: Whether the setup fails where the kernel cannot close the network
            (device_agent.training.network_filter).
        hides_examples: Whether the device has the same weight in masked sums as the largest one, so that its weight shows
            nothing of its data.
    """

    task_ref: str
    data: str
    data_root: str
    patch_dir: str
    device_id: str
    threads: int = 1
    nice: int = 0
    max_memory_mib: int = 0
    models_dir: str = ""
    keep_margin: float = 0.0
    held_dir: str = ""
    private: str = ""
    max_steps: int = 0
    max_epochs: int = 0
    alone_every: int = 0
    require_filter: bool = False
    hides_examples: bool = False


@dataclass(frozen=True)
class Downloaded:
    """A downloaded blob: a file, or its bytes where it is small. The training process cannot look into the agent's memory."""

    path: str = ""
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class ModelStep:
    """A downloaded delta from one version of the global model to the next."""

    blob: Downloaded
    delta: ModelDelta


@dataclass(frozen=True)
class TrainCommand:
    """LocalUpdate of one round (Algorithm 1 of the paper) on the global model `model`.

    Attributes:
        key: The job; the answers repeat it. The same round may be requested again, in another epoch and from another base.
        plan: Optimizer, learning rate, batch size and number of steps.
        private: The request's patch policy, as text.
        schema: Digest of the coordinator's model schema, without moments.
        blob: The downloaded model; None where `steps` lead to it.
        model: Manifest of the global model.
        encoding: Encoding of the update.
        base: Digest of the global model.
        update_path: File for the update.
        download_s: Seconds that the download took.
        chunk_bytes: Chunk size of the update.
        held: Digest of the held version from which `steps` lead to the model; "" where the whole model was downloaded.
        steps: Deltas from `held` to the model, in order.
        hold: Whether the model is held from now on.
        independent_ends_at: If not 0, learning alone is also measured, until this time of time.monotonic(), which is the same
            clock in all processes of a device.
        secure: Terms of a masked round: then `update_path` is for the vector, which a `MaskCommand` masks.
        make_model: Whether the personal model is made right after the training.
        privacy: Terms of differential privacy; None without. With `secure` they determine the vector.
        evaluate: Whether the model is only measured: no update is trained, and no file is written. If the plan has `finish`,
            the model is finished first; with `make_model` it becomes the personal model.
        counted: `WorkRequest.counted`.
        ends_at: End of the round, by the clock of `independent_ends_at`; 0 if it is unknown: then a model is trained alone
            only to measure it.
        content: `WorkRequest.content`; "" where an earlier coordinator left it out.
        attempt: Secret of the attempt at a masked round, for batch order and rounding; empty without masks.
    """

    key: JobKey
    plan: TrainPlan
    private: str
    schema: str
    blob: Downloaded | None
    model: Manifest
    encoding: str
    base: str
    update_path: str
    download_s: float
    chunk_bytes: int
    held: str = ""
    steps: tuple[ModelStep, ...] = ()
    hold: bool = False
    independent_ends_at: float = 0.0
    secure: SecureTerms | None = None
    make_model: bool = True
    privacy: PrivacyTerms | None = None
    evaluate: bool = False
    counted: int = 0
    ends_at: float = 0.0
    content: str = ""
    attempt: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class MaskCommand:
    """Mask the vector of a round -> Masked or TrainFailed.

    Attributes:
        key: The job; the answer repeats it.
        vector: Manifest of the vector that training wrote.
        vector_path: File of the vector.
        update_path: File for the masked update.
        context: The group.
        masks: Masks to add.
        noise: Noise to add; None without differential privacy.
    """

    key: JobKey
    vector: Manifest
    vector_path: str
    update_path: str
    context: bytes
    masks: tuple[Mask, ...]
    noise: SkellamNoise | None = None


@dataclass(frozen=True)
class MakeModel:
    """Make the personal model of a round that was trained earlier, perhaps before a restart.

    `command` is that of the round, without the files of its global model; the update of `manifest` is at its `update_path`.
    """

    command: TrainCommand
    manifest: Manifest


@dataclass(frozen=True)
class CancelTraining:
    """Stop the `TrainCommand` that was sent last, at its next step."""


@dataclass(frozen=True)
class Ready:
    """Answer to `WorkerSetup`: name of the task, digest of its model's schema, number of training examples.

    `tensors` and `frozen` are those of the schema; the agent compares policies by them. `members` is the number of devices
    that a relay represents; 1 for other devices. `network_open` is why the process has a network; "" if it has none.
    `num_validation` is the number of validation examples.
    """

    task: str
    schema: str
    num_examples: int
    tensors: tuple[TensorSpec, ...] = ()
    frozen: Frozen = NOTHING_FROZEN
    members: int = 1
    network_open: str = ""
    num_validation: int = 0


@dataclass(frozen=True)
class SetupFailed:
    """Answer to a `WorkerSetup` that cannot be followed; the process ends.

    `exit_code` is that of the error (shared.errors). `lost` are the rounds that the process had received; the supervisor sets
    this field.
    """

    detail: str
    exit_code: int
    lost: tuple[JobKey, ...] = ()


@dataclass(frozen=True)
class TrainProgress:
    """`done` of `total` steps are done."""

    key: JobKey
    done: int
    total: int


@dataclass(frozen=True)
class Trained:
    """The patch is saved, and the update, or the vector of a masked round, is at the command's `update_path`.

    With `model_follows` the process makes the personal model next; `ModelMade` follows.
    """

    key: JobKey
    manifest: Manifest
    report: UpdateReport
    model_follows: bool = False


@dataclass(frozen=True)
class Evaluated:
    """The model was measured, as the command's `evaluate` asks. `model_follows` is as in `Trained`."""

    key: JobKey
    evaluation: Evaluation
    model_follows: bool = False


@dataclass(frozen=True)
class Masked:
    """The masked update is at the command's `update_path`."""

    key: JobKey
    manifest: Manifest


@dataclass(frozen=True)
class ModelMade:
    """The round's personal model is staged, or there is none: the log has the reason."""

    key: JobKey


@dataclass(frozen=True)
class ModelHeld:
    """The process holds this version of the global model in memory; it is on disk once the process has ended."""

    version: str


@dataclass(frozen=True)
class TrainFailed:
    """There is no update. `detail` is one line for the device's own log: it may hold private names and values."""

    key: JobKey
    reason: FailReason
    detail: str
    cause: FailCause | UnsetType = UNSET


@dataclass(frozen=True)
class TrainCancelled:
    """Training stopped as commanded, without an update. The patch is unchanged, unless training had ended."""

    key: JobKey


Command = WorkerSetup | TrainCommand | MaskCommand | MakeModel | PauseTraining | ContinueTraining | CancelTraining
Answer = (
    Ready
    | SetupFailed
    | TrainProgress
    | Trained
    | Evaluated
    | Masked
    | ModelMade
    | ModelHeld
    | TrainFailed
    | TrainCancelled
)

COMMANDS: dict[str, type[Command]] = {kind.__name__: kind for kind in get_args(Command)}
ANSWERS: dict[str, type[Answer]] = {kind.__name__: kind for kind in get_args(Answer)}
_NAMED = tuple[str, msgspec.Raw]
learn_types(_NAMED, *COMMANDS.values(), *ANSWERS.values())


def write_message(stream: BinaryIO, message: Command | Answer) -> None:
    """Send one message and flush. OSError where the other end is closed."""
    frame = msgspec.msgpack.encode([type(message).__name__, message])
    stream.write(_LENGTH.pack(len(frame)) + frame)
    stream.flush()


def read_command(stream: BinaryIO) -> Command | None:
    """Read the next command; None at the end of the stream. WireError for anything else."""
    return _read(stream, COMMANDS)


def read_answer(stream: BinaryIO) -> Answer | None:
    """Read the next answer; None at the end of the stream. WireError for anything else."""
    return _read(stream, ANSWERS)


def _read(stream: BinaryIO, kinds: dict[str, type[Message]]) -> Message | None:
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    if not 1 <= length <= MAX_FRAME_BYTES:
        raise WireError(f"training channel: {head!r} does not begin a frame of 1 to {MAX_FRAME_BYTES} bytes")
    frame = stream.read(length)
    if len(frame) < length:
        raise WireError(f"training channel: the stream ended after {len(frame)} of a frame's {length} bytes")
    try:
        name, fields = msgspec.msgpack.decode(frame, type=_NAMED)
        return msgspec.msgpack.decode(fields, type=kinds[name])
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError) as error:
        raise WireError(f"training channel: not a message: {error}") from error
