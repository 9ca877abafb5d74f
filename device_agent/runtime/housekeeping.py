"""Work of the agent's loop beside its job: status for systemd, local metrics, and the release of idle memory."""

from __future__ import annotations

import logging

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.runtime.agent_ports import TrainingPort
from fedpatch.device_agent.runtime.idle_release import IDLE_STATES, IdleTimer
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.telemetry.local_metrics import LocalMetrics
from fedpatch.shared.deadlines import earliest

_log = logging.getLogger("fedpatch.agent")


class Housekeeping:
    """Work of each turn of the loop beside the job: systemd, local metrics, and the memory of an idle training process.

    Args:
        trainer: The training process.
        idle: Decides when its memory is given back.
        manager: Connection to systemd.
        metrics: Local metrics; None where the owner wants none.
    """

    def __init__(
        self, trainer: TrainingPort, idle: IdleTimer, manager: ServiceManager, *, metrics: LocalMetrics | None = None
    ) -> None:
        self._trainer = trainer
        self._idle = idle
        self._manager = manager
        self._metrics = metrics

    def tick(self, job: Job, *, connected: bool, task: str, now: float, busy: bool = False) -> None:
        """Do the work of one turn.

        Args:
            job: The job, which is only read.
            connected: Whether there is a connection to the broker.
            task: Task that the training process has loaded, "" until it has.
            now: Monotonic seconds.
            busy: Whether the training process makes a personal model.
        """
        ready = bool(task)
        idle = ready and not busy and job.state in IDLE_STATES and self._trainer.pid is not None
        self._idle.see(idle=idle, now=now)
        if self._idle.tick(now):
            _log.info("nothing to train for a while: giving the memory of training back")
            self._trainer.stop()
        self._manager.doing(_in_words(job, connected=connected, ready=ready), now)
        self._manager.tick(now)
        if self._metrics is not None:
            self._metrics.look(job, connected=connected, task=task, now=now)

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due."""
        metrics_at = self._metrics.next_deadline() if self._metrics is not None else None
        return earliest(self._idle.next_deadline(), self._manager.next_deadline(), metrics_at)

    def stopping(self) -> None:
        """The loop has ended."""
        self._manager.stopping()
        if self._metrics is not None:
            self._metrics.stop()


def _in_words(job: Job, *, connected: bool, ready: bool) -> str:
    """Describe the agent for `systemctl status`; nothing of it leaves the device."""
    status = job.status()
    doing = "loading the task" if not ready else str(job.state)
    if status is not None:
        doing = f"{job.state}, round {status.round} of run {status.run}"
    return doing if connected else f"{doing}; not connected to the broker"
