"""Frames between the agent and its training process: any message is read as written, and damage is a WireError."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from fedpatch.device_agent.job.job_effects import ContinueTraining, PauseTraining
from fedpatch.device_agent.job.training_messages import (
    ANSWERS,
    COMMANDS,
    MAX_FRAME_BYTES,
    CancelTraining,
    Downloaded,
    Evaluated,
    MakeModel,
    MaskCommand,
    Masked,
    ModelHeld,
    ModelMade,
    ModelStep,
    Ready,
    SetupFailed,
    TrainCancelled,
    TrainCommand,
    Trained,
    TrainFailed,
    TrainProgress,
    WorkerSetup,
    read_answer,
    read_command,
    write_message,
)
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.tensors.arrays import TensorSpec
from fedpatch.shared.wire.messages import Evaluation
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.delta_jobs import DELTAS
from tests.device_agent.jobs import DIGEST, KEY, REQUEST
from tests.support.specs import model, report, update

TRAIN = TrainCommand(
    KEY,
    REQUEST.plan,
    "affine",
    REQUEST.schema,
    Downloaded("/m"),
    model(),
    "fp32",
    DIGEST,
    "/u",
    2.5,
    100,
    DIGEST,
    hold=True,
)
SENT_COMMANDS = (
    WorkerSetup("digits", "shard:0/1", "/data", "/patch", "pi-1", threads=2),
    TRAIN,
    replace(TRAIN, blob=Downloaded(content=bytes(range(256)))),
    replace(TRAIN, blob=None, steps=(ModelStep(Downloaded("/s"), DELTAS[0]),), independent_ends_at=9.0),
    MakeModel(TRAIN, update()),
    MaskCommand(KEY, update(), "/v", "/u", b"c" * 32, (Mask(b"s" * 32, -1),), SkellamNoise(b"n" * 32, 4.0)),
    PauseTraining(),
    ContinueTraining(),
    CancelTraining(),
)
SENT_ANSWERS = (
    Ready("digits", DIGEST, 10, (TensorSpec("w", (2, 3), "float32", "weight"),)),
    SetupFailed("no data", 3, lost=(KEY,)),
    TrainProgress(KEY, 3, 5),
    Trained(KEY, update(), report(), model_follows=True),
    Evaluated(KEY, Evaluation(DIGEST, 0.75, 20, 0.5)),
    Masked(KEY, update()),
    ModelMade(KEY),
    ModelHeld(DIGEST),
    TrainFailed(KEY, FailReason.NOT_FINITE, "nan in fc.weight"),
    TrainCancelled(KEY),
)


@pytest.mark.parametrize(
    ("messages", "kinds", "read"),
    [(SENT_COMMANDS, COMMANDS, read_command), (SENT_ANSWERS, ANSWERS, read_answer)],
    ids=["commands", "answers"],
)
def test_messages_are_read_as_they_were_written_and_then_none(messages, kinds, read):
    assert {type(message) for message in messages} == set(kinds.values())
    pipe = io.BytesIO()
    stream = io.BufferedWriter(pipe)
    for message in messages:
        write_message(stream, message)
    pipe.seek(0)  # each message was flushed
    assert tuple(read(pipe) for _ in messages) == messages
    assert read(pipe) is None


def _frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\1", "does not begin a frame"),
        (_frame(b""), "does not begin a frame"),
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "does not begin a frame"),
        (MAX_FRAME_BYTES.to_bytes(4, "big"), f"ended after 0 of a frame's {MAX_FRAME_BYTES} bytes"),
        (_frame(b"abc")[:-1], "ended after 2 of a frame's 3 bytes"),
        (_frame(b"\xc1"), "not a message"),
        (_frame(b"\x92\xa3foo\x80"), "not a message: 'foo'"),
        (_frame(b"\x92\xa1\xff\x80"), "not a message"),
        (_frame(b"\x92\xa9ModelMade\x80"), "not a message: .*key"),
    ],
    ids=["short head", "empty", "too long", "long, cut", "cut", "no msgpack", "unknown", "no UTF-8", "no field"],
)
def test_damaged_frame_is_a_wire_error(data, words):
    with pytest.raises(WireError, match=f"training channel: .*{words}"):
        read_answer(io.BytesIO(data))


def test_command_is_no_answer():
    pipe = io.BytesIO()
    write_message(pipe, PauseTraining())
    pipe.seek(0)
    with pytest.raises(WireError, match="PauseTraining"):
        read_answer(pipe)
