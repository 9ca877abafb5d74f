"""What a coordinator tells whoever watches its run: one message that says how everything stands, of bounded size.

It is told for people to look at. Nothing depends on it: it may be lost, and each one holds all that the one before did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedpatch.shared.wire.field_types import Count, Fraction, Measure, Seconds, Text, Word

MAX_DEVICES = 50
MAX_TALLIES = 40
MAX_REASONS = 8
MAX_ROUNDS = 8
MAX_EARLIER = 52


@dataclass(frozen=True)
class ReasonCount:
    """How many devices gave a reason."""

    reason: Word
    count: Count


Reasons = Annotated[tuple[ReasonCount, ...], Meta(max_length=MAX_REASONS)]


@dataclass(frozen=True)
class DeviceStatus:
    """A device of the open round; `progress` is the fraction of its training that is done."""

    device: Word
    state: Word
    reason: Word
    progress: Fraction


@dataclass(frozen=True)
class StateCount:
    """How many devices of the open round are in a state for a reason."""

    state: Word
    reason: Word
    count: Count


@dataclass(frozen=True)
class RoundStatus:
    """A round that is over. User accuracies are values of the task's metric, bytes as they travelled."""

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
    """The run of the envelope now. `phase` is that of its round, or "waiting"; of a run that is over `stopped` says why.

    `devices` are those of the open round, of many only the slowest; `others` counts the rest. While waiting, `present` of
    `wanted` devices are there and willing, `starting` have not loaded their task, `unwilling` says why others are not, and
    `missing` names some of those that count and cannot be asked. `reported` of `needed` updates make the
    quorum. `rounds` are the last ones, `earlier` the user accuracies of those before them; bytes are those of all rounds
    that are over, and of the open one so far (0 from a coordinator that does not tell them). `metric` is what user
    accuracies are of, and `lower_is_better` says so of an error.
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
