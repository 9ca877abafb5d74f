"""What the last round took of this device, by its own clock, and how good its model was."""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.vitals import LastRound


class RoundTimes:
    """Told of a round as it goes by; `now` is monotonic, in seconds.

    `last` is the last round whose update was committed, None where this process saw none; `report` that of the last training,
    whatever has become of its update.
    """

    def __init__(self) -> None:
        self.last: LastRound | None = None
        self.report: UpdateReport | None = None
        self._trained: JobKey | None = None
        self._sends_since: float | None = None

    def trained(self, key: JobKey, report: UpdateReport) -> None:
        """A training is over."""
        self._trained, self.report, self._sends_since = key, report, None

    def sends(self, now: float) -> None:
        """A chunk of the update is sent."""
        if self._sends_since is None:
            self._sends_since = now

    def committed(self, key: JobKey, now: float) -> None:
        """The coordinator has the update, perhaps in a newer epoch than it was trained in."""
        trained, report = self._trained, self.report
        if trained is None or report is None or (trained.run, trained.round) != (key.run, key.round):
            return  # trained before this process began
        upload_s = 0.0 if self._sends_since is None else now - self._sends_since
        self.last = LastRound(key.run, key.round, report.train_s, upload_s)
