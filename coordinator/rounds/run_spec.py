"""The terms of a run, which stay the same for its length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.messages import TrainPlan


@dataclass(frozen=True)
class RunSpec:
    """The terms of a run.

    Attributes:
        run: Name of the run.
        epoch: Number of the process that executes the run; it grows with each resume.
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
        wait_s: Time to wait for devices once a round is due, in seconds.
        participation: Share of the fleet that a round is meant for, above 0 and at most 1 (the paper's C).
        over_select: Invitations per device that a round is meant for, at least 1.
        policy: The conditions under which a round ends; its `target` is replaced in each round.
        upload_slots: Devices that upload at once.
        upload_window: Chunks that a device may have in flight.
        seed: Seed of the run.
        round_interval_s: Least time from the beginning of a round to the next, in seconds.
        metric: The metric of user accuracies.
        limits: The bounds of updates.
        auto_deadline: Whether the deadline follows from earlier rounds (`policy_of`). The deadline in `policy` is then that of
            the first round.
        longest_pause_s: Longest pause after a failed round, in seconds.
        independent_every: Training rounds from one measurement of learning alone to the next; 0 for never.
        evaluate_every: Training rounds from one evaluate round to the next; 0 for never.
        evaluate_participation: Share of the fleet that an evaluate round asks, above 0 and at most 1.
        evaluates_only: Whether the run has one evaluate round and no training.
        privacy: The terms of differential privacy; None without.
        secure: The conditions of masked rounds; None for rounds without masks.
        carry: The conditions of buffered rounds; None: a round refuses late updates.
        first_round: Number of the first round if there are no records; a relay runs the rounds that its hub requests.
        leader_epoch: Epoch of the leader of a fleet with standbys, for devices; None without standbys.
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
    evaluate_every: int = 0
    evaluate_participation: float = 1.0
    evaluates_only: bool = False
    privacy: PrivacyPolicy | None = None
    secure: SecurePolicy | None = None
    carry: CarryPolicy | None = None
    first_round: int = 1
    leader_epoch: int | None = None
