"""The terms of a run, which stay the same for its length, the reasons for its end, the choice of encodings, and the deadlines.

The automatic deadline of a round follows from the times of the devices in earlier rounds:

    deadline = 3 * median over the last 10 rounds of (time by which 90 % of the round's updates had arrived)

The first round has 600 s. A round that missed its quorum at its deadline doubles the next deadline, so that a slower fleet
succeeds before `max_failed_rounds`. The deadline is at least 60 s and twice the recruiting deadline, and at most one day.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fedpatch.coordinator.aggregation.limit_settings import Limits
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.masking.group_drawing import largest_group
from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.shared.masking.revocation import RevocationList
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.masking_messages import SecureTerms, ThresholdRule
from fedpatch.shared.wire.messages import TrainPlan, is_delta

FIRST_DEADLINE_S = 600.0
SHORTEST_DEADLINE_S = 60.0
LONGEST_DEADLINE_S = 86_400.0
DEADLINE_FACTOR = 3.0
DEADLINE_WINDOW = 10
"""The number of rounds whose times count."""

_ROUNDING_S = 1e-6


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
        first_round: Number of the first round if there are no records; a relay runs the rounds that its parent requests.
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


@dataclass(frozen=True)
class SecurePolicy:
    """The conditions of a masked run (coordinator.rounds.masked_round).

    Attributes:
        size: Greatest size of a group, except where groups are merged (coordinator.masking.group_drawing).
        least: Least size of a group.
        threshold: Rule for the number of members that must reveal their shares.
        bits: Bits of a masked value.
        keep: One of `keep` consecutive values travels in a round.
        clip: Greatest L2 norm of a device's step; None: it follows from the model (coordinator.aggregation.masked_scale).
        weight_cap: Most examples that count as a weight; None: the median of the numbers that devices registered.
        colluders: Members of a group whose noise of differential privacy does not count.
        share_deadline_s: Time for the members of a group to send their shares, in seconds.
        unix_time: Returns the time at which certificates must be valid, in Unix seconds.
        authorities: CAs of the certificates that sign the devices' keys; None: keys are not signed.
        revocations: Returns the CA's list of revoked certificates at the begin of a round; None: there is none.
        given: The terms of the parent's round, which a relay's site uses unchanged; None: they follow from the rest.
    """

    size: int
    least: int
    threshold: ThresholdRule
    bits: int
    keep: int
    clip: float | None
    weight_cap: int | None
    share_deadline_s: float
    unix_time: Callable[[], float]
    authorities: Authorities | None = None
    colluders: int = 0
    given: SecureTerms | None = None
    revocations: Callable[[], RevocationList | None] = lambda: None

    @property
    def strict(self) -> bool:
        """True if the devices' keys must be signed."""
        return self.authorities is not None

    @property
    def largest(self) -> int:
        """The greatest number of devices that a group can have."""
        return largest_group(self.size, self.least)


EVERYWHERE = "fp32+zstd"
"""Each device supports this encoding, and it is lossless."""

ENCODING_HELP = "Encoding of models and updates; with secure = groups masked-u8 or masked-u16, of updates."

_FALLBACKS = (EVERYWHERE, "fp32", "fp16+zstd", "fp16")


def encoding_for(wanted: str, known: Collection[str]) -> str:
    """Return `wanted` if the device supports it, else the best other encoding that both sides support."""
    return next((encoding for encoding in (wanted, *_FALLBACKS) if encoding in known), EVERYWHERE)


def whole_model_encoding(wanted: str) -> str:
    """Return the encoding of a whole model: a lossless one if the run's updates are differences from the model."""
    return EVERYWHERE if is_delta(wanted) else wanted


def policy_of(spec: RunSpec, records: Sequence[RoundRecord]) -> RoundPolicy:
    """Return the policy of the round after `records`; a deadline in the settings stays as it is."""
    if not spec.auto_deadline:
        return spec.policy
    trained = [record for record in records if not record.is_evaluation]
    return replace(spec.policy, deadline_s=auto_deadline_s(trained, spec.policy.recruit_deadline_s))


def evaluation_policy(policy: RoundPolicy) -> RoundPolicy:
    """Return the policy of an evaluate round: it waits for all devices up to the deadline, and one answer is enough."""
    return replace(policy, min_cohort=1, quorum_updates=1, grace_s=policy.deadline_s, unmask_s=None, carries=False)


def auto_deadline_s(records: Sequence[RoundRecord], recruit_deadline_s: float) -> float:
    """Return the deadline of the round after `records`, in seconds from its invitation.

    Equal records give equal deadlines, so that a resumed round keeps the deadline in its work requests.

    Args:
        records: The rounds of the run so far, in order.
        recruit_deadline_s: Time to answer the invitation, in seconds; the deadline is at least twice that.
    """
    shortest_s = max(SHORTEST_DEADLINE_S, 2 * recruit_deadline_s)
    times = [record.report_p90_s for record in records if record.report_p90_s is not None][-DEADLINE_WINDOW:]
    deadline_s = DEADLINE_FACTOR * statistics.median(times) if times else FIRST_DEADLINE_S
    if records and _used_up(records[-1]):
        deadline_s = max(deadline_s, 2 * records[-1].deadline_s)
    return min(max(deadline_s, shortest_s), max(LONGEST_DEADLINE_S, shortest_s))


def _used_up(record: RoundRecord) -> bool:
    """Return whether the round missed its quorum at its deadline."""
    collected_s = record.seconds - record.phase_seconds.select
    return record.failure == "quorum_missed" and 0 < record.deadline_s <= collected_s + _ROUNDING_S
