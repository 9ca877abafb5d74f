"""The terms of a small run, and the presence of its devices."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, SendMessage
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.tensors.patch_policy import PatchPolicy
from fedpatch.shared.tensors.schema import Schema, TensorSpec
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    Body,
    DeviceState,
    Envelope,
    JobStatus,
    Manifest,
    Refused,
    TaskCapability,
    TrainPlan,
    UpdateReport,
)

RUN = "run-1"
TASK = "digits"
MODEL_SCHEMA = Schema(
    (TensorSpec("fc.weight", (2, 3), "float32", "weight"), TensorSpec("bn.weight", (2,), "float32", "affine"))
)
SCHEMA = MODEL_SCHEMA.digest
PUBLIC_SCHEMA = PatchPolicy("affine").public(MODEL_SCHEMA).digest
CHUNK_BYTES = 100
TASKS = (TaskCapability(TASK, SCHEMA, 10),)

_POLICY = RoundPolicy(
    target=0, min_cohort=1, quorum=1.0, recruit_deadline_s=10.0, deadline_s=300.0, grace_s=20.0, rejoin_s=30.0
)
_SPEC = RunSpec(
    run=RUN,
    epoch=1,
    task=TASK,
    schema=SCHEMA,
    public_schema=PUBLIC_SCHEMA,
    private="affine",
    plan=TrainPlan("sgd", 0.1, 20),
    encoding="fp32",
    chunk_bytes=CHUNK_BYTES,
    max_blob_bytes=10_000,
    rounds=3,
    target_ua=None,
    time_limit_s=None,
    max_failed_rounds=3,
    devices=1,
    wait_s=60.0,
    participation=1.0,
    over_select=1.0,
    policy=_POLICY,
    upload_slots=2,
    upload_window=4,
    seed=7,
)


def run_spec(**changes: Any) -> RunSpec:
    """Three rounds in which every device must report; `changes` are fields of the run or of its policy."""
    of_policy = {one.name for one in fields(RoundPolicy)} & changes.keys()
    policy = replace(_POLICY, **{name: changes.pop(name) for name in of_policy})
    return replace(_SPEC, policy=policy, **changes)


def model(blob: bytes = b"m" * 250) -> Manifest:
    return describe(blob, chunk_bytes=CHUNK_BYTES, encoding="fp32", raw_bytes=len(blob), schema=PUBLIC_SCHEMA)


def update(blob: bytes = b"u" * 350) -> Manifest:
    return model(blob)


def report(accuracy: float | None = 0.5, base: str = "") -> UpdateReport:
    """A device's report of its update."""
    return UpdateReport(base or model().digest, 10, 5, 0.25, accuracy, accuracy, 1.0, 2.0)


def there(boot: str = "b1", job: JobStatus | None = None, tasks: tuple[TaskCapability, ...] = TASKS) -> DeviceState:
    return DeviceState(True, boot, "0.1.0", tasks, ENCODINGS, job)


def gone(boot: str = "b1") -> DeviceState:
    """A device's last will, without further fields."""
    return DeviceState(False, boot)


def envelope_of(body: Body, round_number: int = 1, **changes: Any) -> Envelope:
    """A message of a round of this run."""
    return replace(Envelope(body, task=TASK, run=RUN, epoch=1, round=round_number), **changes)


def sent(effects: list[Effect]) -> list[tuple[str, Body]]:
    """Return the messages to devices, each with its device."""
    return [(effect.device, effect.envelope.body) for effect in effects if isinstance(effect, SendMessage)]


def refusal(effects: list[Effect]) -> Refused:
    """The only message among these effects, which refuses an update."""
    [(_, body)] = sent(effects)
    assert isinstance(body, Refused)
    return body


def counted(effects: list[Effect]) -> list[tuple[str, str, str]]:
    """Return the counted events: device, counter and reason."""
    return [(effect.device, effect.what, effect.reason) for effect in effects if isinstance(effect, CountEvent)]
