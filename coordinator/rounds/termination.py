"""The termination criteria of a run (Algorithm 1, line 2), in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_spec import RunSpec


class Stopped(StrEnum):
    """The reasons for the end of a run."""

    TARGET_UA = "target_ua"
    MAX_ROUNDS = "max_rounds"
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class RunProgress:
    """The state of a run between two rounds, as far as its end depends on it.

    Attributes:
        records: The rounds so far.
        trained: Training rounds that are over.
        evaluates_next: Whether the next round is an evaluate round; it is run before the training can end.
        evaluated: Whether this process has ended an evaluate round.
        out_of_time: Whether the time limit of the run has passed.
        stop_requested: Whether the operator stops the run after its open round.
        failures: Failed rounds in a row that count (coordinator.rounds.failed_rounds).
    """

    records: Sequence[RoundRecord]
    trained: int
    evaluates_next: bool
    evaluated: bool
    out_of_time: bool
    stop_requested: bool
    failures: int


def stop_reason(spec: RunSpec, progress: RunProgress) -> Stopped | None:
    """Return the reason for the end of the run: the first criterion of `CRITERIA` that is met; None while it goes on."""
    return next((reason for is_met, reason in CRITERIA if is_met(spec, progress)), None)


def _measured_only(spec: RunSpec, progress: RunProgress) -> bool:
    return spec.evaluates_only and progress.evaluated


def _reached_target(spec: RunSpec, progress: RunProgress) -> bool:
    if progress.evaluates_next or spec.target_ua is None:
        return False
    last = next((record for record in reversed(progress.records) if not record.is_evaluation), None)
    if last is None or last.user_accuracy is None or last.outcome != "aggregated":
        return False
    return last.measured >= last.needed and spec.metric.reached(last.user_accuracy, spec.target_ua)


def _trained_all(spec: RunSpec, progress: RunProgress) -> bool:
    return not progress.evaluates_next and progress.trained >= spec.rounds


def _out_of_time(spec: RunSpec, progress: RunProgress) -> bool:
    return progress.out_of_time


def _stop_requested(spec: RunSpec, progress: RunProgress) -> bool:
    return progress.stop_requested


def _failed_too_often(spec: RunSpec, progress: RunProgress) -> bool:
    return progress.failures >= spec.max_failed_rounds


CRITERIA: Sequence[tuple[Callable[[RunSpec, RunProgress], bool], Stopped]] = (
    (_measured_only, Stopped.MAX_ROUNDS),
    (_reached_target, Stopped.TARGET_UA),
    (_trained_all, Stopped.MAX_ROUNDS),
    (_out_of_time, Stopped.DEADLINE),
    (_stop_requested, Stopped.INTERRUPTED),
    (_failed_too_often, Stopped.FAILED),
)
"""The termination criteria, each with the reason that it gives."""
