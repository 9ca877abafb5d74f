"""What stays the same for the length of a run, and why a run ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from coordinator.limits import Limits
from coordinator.round import RoundPolicy
from shared.messages import TrainPlan
from shared.metric_terms import MetricTerms


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
