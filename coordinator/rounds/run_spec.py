"""The terms of a run, which stay the same for its length, the reasons for its end, and the choice of encodings."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from fedpatch.coordinator.aggregation.limit_settings import Limits
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.messages import TrainPlan, is_delta


class Stopped(StrEnum):
    """The reasons for the end of a run."""

    TARGET_UA = "target_ua"
    MAX_ROUNDS = "max_rounds"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class RunSpec:
    """The terms of a run.

    Attributes:
        run: Name of the run.
        epoch: Number of the process that plays the run; it grows with each resume.
        task: Name of the task.
        schema: Digest of the whole model's schema.
        public_schema: Digest of the schema of the tensors that travel.
        private: The patch policy.
        plan: The training plan.
        encoding: The encoding of models and updates.
        chunk_bytes: Size of a chunk.
        max_blob_bytes: Greatest size of an update, packed and unpacked.
        rounds: Number of rounds after which the run ends.
        target_ua: User accuracy, a value of `metric`, at which the run ends; None for no target.
        time_limit_s: Time after which the run ends, in seconds; None for no limit.
        max_failed_rounds: Failed rounds in a row after which the run fails.
        devices: Devices to wait for before the first round.
        wait_s: Time to wait for devices, in seconds.
        participation: Share of the fleet that a round is meant for, above 0 and at most 1 (the paper's C).
        over_select: Invitations per device that a round is meant for, at least 1.
        policy: The conditions under which a round ends; its `target` is replaced in each round.
        upload_slots: Devices that upload at once.
        upload_window: Chunks that a device may have in flight.
        seed: Seed of the run.
        round_interval_s: Least time from the beginning of a round to the next, in seconds.
        metric: The metric of user accuracies.
        limits: The bounds of updates.
        auto_deadline: Whether the deadline follows from earlier rounds (auto_deadline.py). The one in `policy` is then that
            of the first round.
        longest_pause_s: Longest pause after a failed round, in seconds.
        independent_every: Rounds from one measurement of learning alone to the next; 0 for never.
        privacy: The terms of differential privacy; None without.
    """

    run: str
    epoch: int
    task: str
    schema: str
    public_schema: str
    private: str
    plan: TrainPlan
    encoding: str
    chunk_bytes: int
    max_blob_bytes: int
    rounds: int
    target_ua: float | None
    time_limit_s: float | None
    max_failed_rounds: int
    devices: int
    wait_s: float
    participation: float
    over_select: float
    policy: RoundPolicy
    upload_slots: int
    upload_window: int
    seed: int
    round_interval_s: float = 0.0
    metric: MetricTerms = field(default_factory=MetricTerms)
    limits: Limits = field(default_factory=Limits)
    auto_deadline: bool = False
    longest_pause_s: float = math.inf
    independent_every: int = 0
    privacy: PrivacyPolicy | None = None


EVERYWHERE = "fp32+zstd"
"""Each device supports this encoding, and it is lossless."""

ENCODING_HELP = (
    "Encoding of models and updates: fp32, fp16 (values), fp32+zstd, fp16+zstd (compressed values), delta-bf16, delta-int8 or "
    "delta-int4 (compressed differences). A device without it uses another."
)

_FALLBACKS = (EVERYWHERE, "fp32", "fp16+zstd", "fp16")


def encoding_for(wanted: str, known: Collection[str]) -> str:
    """Return `wanted` if the device supports it, else the best other encoding that both sides support."""
    return next((encoding for encoding in (wanted, *_FALLBACKS) if encoding in known), EVERYWHERE)


def whole_model_encoding(wanted: str) -> str:
    """Return the encoding of a whole model: a lossless one if the updates of the run are differences from it."""
    return EVERYWHERE if is_delta(wanted) else wanted
