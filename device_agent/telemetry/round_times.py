"""The times of the last round on this device, by its own clock, and the user accuracy of its model."""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.vitals import LastRound


class RoundTimes:
    """Notes the phases of a round; `now` is monotonic seconds.

    `last` is the last round whose update was committed, None before the first of this process. `report` is that of the last
    training, with any outcome of its update.
    """

    def __init__(self) -> None:
        self.last: LastRound | None = None
        self.report: UpdateReport | None = None
        self._trained: JobKey | None = None
        self._sends_since: float | None = None

    def trained(self, key: JobKey, report: UpdateReport) -> None:
        """Note the end of a training."""
        self._trained, self.report, self._sends_since = key, report, None

    def sends(self, now: float) -> None:
        """Note that a chunk of the update is sent."""
        if self._sends_since is None:
            self._sends_since = now

    def committed(self, key: JobKey, now: float) -> None:
        """Note the commit of the update, which may be in a newer epoch than its training."""
        trained, report = self._trained, self.report
        if trained is None or report is None or (trained.run, trained.round) != (key.run, key.round):
            return  # trained before this process began
        upload_s = 0.0 if self._sends_since is None else now - self._sends_since
        self.last = LastRound(key.run, key.round, report.train_s, upload_s)
