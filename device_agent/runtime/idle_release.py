"""The release of training's memory while there is nothing to train: after `idle_release_s`, or at once for a long rest."""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import JobState

# A process that has torch loaded holds hundreds of megabytes; starting another takes a Pi half a minute.
LONG_REST_S = 300.0
# While an update waits for its upload, which may take days, nothing is trained.
IDLE_STATES = (JobState.IDLE, JobState.UPLOADING)


class IdleTimer:
    """Decides when the memory of an idle training process is given back; with `release_s` 0 never.

    The process holds hundreds of megabytes while torch is loaded; loading it again takes a Raspberry Pi half a minute.
    """

    def __init__(self, release_s: float) -> None:
        self._release_s = release_s
        self._since: float | None = None

    def see(self, *, idle: bool, now: float) -> None:
        """Note whether a training process has no work, and none is about to come."""
        if not idle or not self._release_s:
            self._since = None
        elif self._since is None:
            self._since = now

    def tick(self, now: float) -> bool:
        """Let time pass; True once the process has been idle for long enough."""
        due = self.next_deadline()
        if due is None or now < due:
            return False
        self._since = None
        return True

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due."""
        return None if self._since is None else self._since + self._release_s
