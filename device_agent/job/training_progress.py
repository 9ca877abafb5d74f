"""The pace of the messages of progress: by time alone, since the moments of steps would reveal their number."""

from __future__ import annotations

from fedpatch.shared.wire.messages import Progress
from fedpatch.shared.wire.reason_codes import JobPhase

PROGRESS_S = 15.0
"""Pause between two messages of progress; a coordinator takes a device for silent after 60 s."""


class TrainingProgress:
    """The steps done of one training, and the time of the next message about them. Times are monotonic seconds.

    Args:
        masked: Whether the round is masked: the share of one step would reveal the number of steps, and so that of the
            examples.
        now: The time at which the training begins.
    """

    def __init__(self, *, masked: bool, now: float) -> None:
        self._done, self._total = 0, 1
        self._masked = masked
        self._due_at = now + PROGRESS_S

    def note(self, done: int, total: int) -> None:
        """Note that `done` of `total` steps are done."""
        self._done, self._total = done, total

    def is_due(self, now: float) -> bool:
        """Return whether a message is due, and if so begin the pause before the next one."""
        if now < self._due_at:
            return False
        self._due_at = now + PROGRESS_S
        return True

    def message(self) -> Progress:
        """Return the message about the steps done."""
        if self._masked:
            return Progress(JobPhase.TRAINING, 25 * (4 * self._done // max(self._total, 1)), 100)
        return Progress(JobPhase.TRAINING, self._done, self._total)
