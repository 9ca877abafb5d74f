"""What the agent's loop does beside its job: it tells the service manager how it is, and gives unused memory back."""

from __future__ import annotations

import logging

from device_agent.effects import JobState
from device_agent.idling import Idling
from device_agent.job import Job
from device_agent.notify import ServiceManager
from device_agent.trainer import Trainer

_log = logging.getLogger("fedpatch.agent")

# While an update waits to be fetched, which may take days, nothing is trained.
_IDLE_STATES = (JobState.IDLE, JobState.UPLOADING)


class Upkeep:
    """Asked once in each turn of the loop."""

    def __init__(self, trainer: Trainer, idling: Idling, manager: ServiceManager) -> None:
        self._trainer = trainer
        self._idling = idling
        self._manager = manager

    def look(self, job: Job, *, connected: bool, ready: bool, now: float) -> None:
        """`ready` is whether the training process has ever told what it can train: until then it is loading."""
        idle = ready and job.state in _IDLE_STATES and self._trainer.pid is not None
        self._idling.see(idle=idle, now=now)
        if self._idling.tick(now):
            _log.info("nothing to train for a while: giving the memory of training back")
            self._trainer.stop()
        self._manager.doing(_in_words(job, connected=connected, ready=ready), now)
        self._manager.tick(now)

    def next_deadline(self) -> float | None:
        """When to look again, whatever happens."""
        wanted = (self._idling.next_deadline(), self._manager.next_deadline())
        return min((one for one in wanted if one is not None), default=None)

    def stopping(self) -> None:
        """The loop is over."""
        self._manager.stopping()


def _in_words(job: Job, *, connected: bool, ready: bool) -> str:
    """For `systemctl status`; nothing here leaves the device."""
    status = job.status()
    doing = "loading the task" if not ready else str(job.state)
    if status is not None:
        doing = f"{job.state}, round {status.round} of run {status.run}"
    return doing if connected else f"{doing}; not connected to the broker"
