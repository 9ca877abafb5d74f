"""The status of a run, which a coordinator publishes for people: one message of bounded size.

Nothing depends on it. A lost message does no harm, because each one holds the whole status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from fedpatch.shared.wire.field_types import Count, Fraction, Measure, Seconds, Text, Word

MAX_DEVICES = 50
MAX_TALLIES = 40
MAX_REASONS = 8
MAX_ROUNDS = 8
MAX_EARLIER = 52


@dataclass(frozen=True)
class ReasonCount:
    """The number of devices that gave a reason."""

    reason: Word
    count: Count


Reasons = Annotated[tuple[ReasonCount, ...], Meta(max_length=MAX_REASONS)]


@dataclass(frozen=True)
class DeviceStatus:
    """A participant of the open round; `progress` is the completed fraction of its training."""

    device: Word
    state: Word
    reason: Word
    progress: Fraction


@dataclass(frozen=True)
class StateCount:
    """The number of participants of the open round that are in a state for a reason."""

    state: Word
    reason: Word
    count: Count


@dataclass(frozen=True)
class RoundStatus:
    """A completed round. User accuracies are values of the task's metric; bytes are those on the wire."""

    round: Count
    outcome: Word
    failure: Word
    cohort: Count
    reported: Count
    user_accuracy: Measure | None
    user_accuracy_min: Measure | None
    user_accuracy_after: Measure | None
    seconds: Seconds
    bytes_down: Count
    bytes_up: Count
    declined: Reasons
    failed: Reasons
    refused: Reasons
    late: Count


@dataclass(frozen=True)
class RunStatus:
    """The present status of the run that the envelope names.

    Attributes:
        phase: Phase of the open round, or "waiting" between rounds.
        stopped: Why the run is over; "" while it goes on.
        rounds_in_all: Largest number of rounds of the run.
        target_ua: User accuracy at which the run ends earlier.
        metric: Name of the metric that all user accuracies are values of.
        lower_is_better: True where the metric is an error.
        devices: Participants of the open round; of a large cohort the slowest.
        others: Counts of the participants that are not among `devices`.
        present: Devices that could be invited now.
        wanted: Devices that the next round needs.
        unwilling: While waiting: reasons of devices that cannot be invited.
        reported: Committed updates of the open round.
        needed: Updates that make the quorum.
        user_accuracy: Mean of the open round so far.
        eta_s: Expected time to the quorum.
        elapsed_s: Age of the open round.
        pause_s: Least time to the next round.
        rounds: The last completed rounds.
        earlier: User accuracies of the aggregated rounds before `rounds`.
        bytes_down: Bytes to devices, in all completed rounds.
        bytes_up: Bytes from devices, in all completed rounds.
        round_bytes_down: Bytes to devices in the open round; 0 from an older coordinator.
        round_bytes_up: Bytes from devices in the open round; 0 from an older coordinator.
        starting: Devices that have not loaded their task yet.
        missing: While waiting: some devices that count and cannot be invited, with reasons.
        waits_s: While waiting: the time for which the run waits for them at most. Left out otherwise.
        silent_stores: Stores that the coordinator waits for, in words. Left out while all answer.
    """

    phase: Word
    stopped: Word
    rounds_in_all: Count
    target_ua: Measure | None
    metric: Text
    lower_is_better: bool
    devices: Annotated[tuple[DeviceStatus, ...], Meta(max_length=MAX_DEVICES)]
    others: Annotated[tuple[StateCount, ...], Meta(max_length=MAX_TALLIES)]
    present: Count
    wanted: Count
    unwilling: Reasons
    reported: Count
    needed: Count
    user_accuracy: Measure | None
    eta_s: Seconds | None
    elapsed_s: Seconds
    pause_s: Seconds
    rounds: Annotated[tuple[RoundStatus, ...], Meta(max_length=MAX_ROUNDS)]
    earlier: Annotated[tuple[Measure, ...], Meta(max_length=MAX_EARLIER)]
    bytes_down: Count
    bytes_up: Count
    round_bytes_down: Count = 0
    round_bytes_up: Count = 0
    starting: Count = 0
    missing: Text = ""
    waits_s: Seconds | UnsetType = UNSET
    silent_stores: Text | UnsetType = UNSET

    @property
    def cohort(self) -> int:
        """Number of devices that were invited to the open round."""
        return len(self.devices) + sum(count.count for count in self.others)
