"""What the agent and its training process say to each other, over a pair of pipes.

The agent's process owns the network and no private value; the training process owns the data, the patch and torch,
and no network. A frame is four bytes of length, big-endian, and a msgpack list of the message's name and its fields.
Files, not frames, carry tensors. Every `Train` is answered exactly once: by `Trained`, `TrainFailed` or
`TrainCancelled`, or by the end of the process. A `Trained` that says so, and every `MakeModel`, is followed by `ModelMade`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, TypeVar, get_args

import msgspec

from fedpatch.device_agent.job.job_effects import ContinueTraining, JobKey, PauseTraining
from fedpatch.shared.errors import WireError
from fedpatch.shared.tensors.schema import TensorSpec
from fedpatch.shared.wire.messages import Manifest, ModelDelta, TrainPlan, UpdateReport
from fedpatch.shared.wire.reason_codes import FailReason

MAX_FRAME_BYTES = 2**26
_LENGTH = struct.Struct(">I")

Message = TypeVar("Message")


@dataclass(frozen=True)
class WorkerSetup:
    """First command: what to train, on which data.

    `task_ref` and `data` come from the device's own configuration, never from the network. `threads` are torch's. `nice`
    and `max_memory_mib` (0: no limit) bind the process itself (device_agent.training.resource_limits). `models_dir` is where
    personal models are staged (empty: none are), `keep_margin` how much worse one may be. `held_dir` is where the global
    model is held from one round to the next (empty: nowhere). `private` is the owner's policy of what stays at least (empty:
    the default). `max_steps` and `max_epochs` bound a round's plan (0: no limit).
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


@dataclass(frozen=True)
class ModelStep:
    """A step from one version of the global model to the next, which was downloaded to `path`."""

    path: str
    delta: ModelDelta


@dataclass(frozen=True)
class TrainCommand:
    """LocalUpdate of one round, on the global model `model`.

    It was downloaded to `model_path`; or, where `held` names the version that is held, `steps` lead from there to it. With
    `hold` it is held from now on.

    The answers repeat `key`: the same round may be asked for again, in another epoch and from another base. `schema` is
    the digest of the model's schema that the coordinator told (without moments), `private` the patch policy's text,
    `base` the digest of the global model, `encoding` and `chunk_bytes` those of the update, which goes to `update_path`.
    What learning alone gives is measured where `independent_ends_at` is not 0: when the round stops waiting for the update, by
    time.monotonic(), which is one clock for all processes of a device.
    """

    key: JobKey
    plan: TrainPlan
    private: str
    schema: str
    model_path: str
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


@dataclass(frozen=True)
class MakeModel:
    """Make the personal model of a round that was trained before a restart.

    `command` is the round's, without a way to its global model; the update `manifest` lies at its `update_path`.
    """

    command: TrainCommand
    manifest: Manifest


@dataclass(frozen=True)
class CancelTraining:
    """Stop the `TrainCommand` that was sent last, at its next step."""


@dataclass(frozen=True)
class Ready:
    """Answer to `WorkerSetup`: the task's name, the digest of its model's schema, the number of training examples here.

    `tensors` are those of the schema: the agent compares policies by them.
    """

    task: str
    schema: str
    num_examples: int
    tensors: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True)
class SetupFailed:
    """Answer to `WorkerSetup` that cannot be followed; the process ends. `exit_code` is that of the error (shared.errors).

    `lost` are the rounds that it had been given; who gave them fills it in.
    """

    detail: str
    exit_code: int
    lost: tuple[JobKey, ...] = ()


@dataclass(frozen=True)
class TrainProgress:
    """`done` of `total` steps."""

    key: JobKey
    done: int
    total: int


@dataclass(frozen=True)
class Trained:
    """The patch is saved and the update lies at the command's `update_path`.

    With `model_follows` the process makes the personal model next, and answers `ModelMade` when that has ended.
    """

    key: JobKey
    manifest: Manifest
    report: UpdateReport
    model_follows: bool = False


@dataclass(frozen=True)
class ModelMade:
    """The round's personal model is staged, or there is none: the log says why."""

    key: JobKey


@dataclass(frozen=True)
class TrainFailed:
    """There is no update; `detail` is one line for the device's own log: it may hold private names and values."""

    key: JobKey
    reason: FailReason
    detail: str


@dataclass(frozen=True)
class TrainCancelled:
    """Stopped as asked: there is no update. The patch is as it was, unless training had ended."""

    key: JobKey


Command = WorkerSetup | TrainCommand | MakeModel | PauseTraining | ContinueTraining | CancelTraining
Answer = Ready | SetupFailed | TrainProgress | Trained | ModelMade | TrainFailed | TrainCancelled

COMMANDS: dict[str, type[Command]] = {kind.__name__: kind for kind in get_args(Command)}
ANSWERS: dict[str, type[Answer]] = {kind.__name__: kind for kind in get_args(Answer)}


def write_message(stream: BinaryIO, message: Command | Answer) -> None:
    """Send one message and flush. OSError when nobody is there to read."""
    frame = msgspec.msgpack.encode([type(message).__name__, message])
    stream.write(_LENGTH.pack(len(frame)) + frame)
    stream.flush()


def read_command(stream: BinaryIO) -> Command | None:
    """Next command, None at the end of the stream. Raises WireError for anything else."""
    return _read(stream, COMMANDS)


def read_answer(stream: BinaryIO) -> Answer | None:
    """Next answer, None at the end of the stream. Raises WireError for anything else."""
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
        name, fields = msgspec.msgpack.decode(frame, type=tuple[str, msgspec.Raw])
        return msgspec.msgpack.decode(fields, type=kinds[name])
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError) as error:
        raise WireError(f"training channel: not a message: {error}") from error
