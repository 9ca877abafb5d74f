"""What the agent's loop does beside its job: it tells others how the device is, and gives unused memory back."""

from __future__ import annotations

import logging

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.runtime.idle_timeout import IdleTimer
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.telemetry.local_metrics import LocalMetrics
from fedpatch.device_agent.telemetry.vitals import VitalsPace
from fedpatch.shared.wire.vitals import LastRound, Vitals

_log = logging.getLogger("fedpatch.agent")

# While an update waits to be fetched, which may take days, nothing is trained.
_IDLE_STATES = (JobState.IDLE, JobState.UPLOADING)


class Housekeeping:
    """Asked once in each turn of the loop."""

    def __init__(
        self,
        trainer: Trainer,
        idling: IdleTimer,
        manager: ServiceManager,
        *,
        metrics: LocalMetrics | None = None,
        vitals: VitalsPace | None = None,
    ) -> None:
        """Without `metrics` nobody is told locally, without `vitals` the coordinator is not."""
        self._trainer = trainer
        self._idling = idling
        self._manager = manager
        self._metrics = metrics
        self._vitals = vitals

    def look(self, job: Job, *, connected: bool, task: str, now: float, busy: bool = False) -> None:
        """`task` is what the training process can train, "" until that is known; `busy`: it makes a personal model."""
        ready = bool(task)
        idle = ready and not busy and job.state in _IDLE_STATES and self._trainer.pid is not None
        self._idling.see(idle=idle, now=now)
        if self._idling.tick(now):
            _log.info("nothing to train for a while: giving the memory of training back")
            self._trainer.stop()
        self._manager.doing(_in_words(job, connected=connected, ready=ready), now)
        self._manager.tick(now)
        if self._metrics is not None:
            self._metrics.look(job, connected=connected, task=task, now=now)

    def resend_vitals(self) -> None:
        """Whoever listens to vitals now has heard none."""
        if self._vitals is not None:
            self._vitals.forget()

    def vitals(self, facts: Facts | None, last_round: LastRound | None, now: float) -> Vitals | None:
        """What the coordinator is to be told of the device now, if anything."""
        return None if self._vitals is None else self._vitals.next(facts, last_round, now)

    def next_deadline(self) -> float | None:
        """When to look again, whatever happens."""
        metrics_at = self._metrics.next_deadline() if self._metrics is not None else None
        wanted = (self._idling.next_deadline(), self._manager.next_deadline(), metrics_at)
        return min((one for one in wanted if one is not None), default=None)

    def stopping(self) -> None:
        """The loop is over."""
        self._manager.stopping()
        if self._metrics is not None:
            self._metrics.stop()


def _in_words(job: Job, *, connected: bool, ready: bool) -> str:
    """For `systemctl status`; nothing here leaves the device."""
    status = job.status()
    doing = "loading the task" if not ready else str(job.state)
    if status is not None:
        doing = f"{job.state}, round {status.round} of run {status.run}"
    return doing if connected else f"{doing}; not connected to the broker"
