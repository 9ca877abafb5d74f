"""What stays the same for the length of a run, and why a run ends.

Which encoding serves where the run's does not: for the update of a device that lacks it, and for a whole model.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from fedpatch.coordinator.aggregation.limit_settings import Limits
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.messages import TrainPlan, is_delta


class Stopped(StrEnum):
    """Why a run ended."""

    TARGET_UA = "target_ua"
    MAX_ROUNDS = "max_rounds"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class RunSpec:
    """The terms of a run. `epoch` grows with each resume; digests are of the whole model's and of the public schema.

    `devices` are waited for before the first round, for `wait_s` at most; `policy` is that of a round with an open target.
    With `auto_deadline` its deadline is that of the first round, and others follow from the rounds before (auto_deadline.py).
    After a failed round there is a pause of `longest_pause_s` at most. Rounds begin at least `round_interval_s` apart.
    Every `independent_every` rounds (0: never) devices measure what learning alone would have given.
    `metric` is what devices measure, and `target_ua` is a value of it.
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


EVERYWHERE = "fp32+zstd"
"""Every device knows it, and it keeps every bit."""

ENCODING_HELP = (
    "Encoding of models and updates: values (fp32, fp16), also compressed (+zstd), or compressed differences of 16, 8 or "
    "4 bits (delta-). A device without it is asked for another."
)

_FALLBACKS = (EVERYWHERE, "fp32", "fp16+zstd", "fp16")


def encoding_for(wanted: str, known: Collection[str]) -> str:
    """`wanted` where it is among those that a device says it knows, else the best of the others that both sides know."""
    return next((one for one in (wanted, *_FALLBACKS) if one in known), EVERYWHERE)


def whole_model_encoding(wanted: str) -> str:
    """That of a whole model in a run that wants `wanted`: with every bit where updates are differences from it."""
    return EVERYWHERE if is_delta(wanted) else wanted
