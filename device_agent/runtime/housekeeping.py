"""Work of the agent's loop beside its job: status for systemd, local metrics, and the memory of an idle training process.

A service of Type=notify reports to systemd that it is ready, alive or stopping, and its status: by a datagram of lines
`KEY=value` to the socket that $NOTIFY_SOCKET names (sd_notify(3)). If the loop hangs, it sends no WATCHDOG=1, and systemd
kills and restarts it. Without $NOTIFY_SOCKET nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.runtime.agent_ports import TrainingPort
from fedpatch.device_agent.telemetry.local_metrics import LocalMetrics

_log = logging.getLogger("fedpatch.agent")

# While an update waits for its upload, which may take days, nothing is trained.
_IDLE_STATES = (JobState.IDLE, JobState.UPLOADING)


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
        idle = ready and not busy and job.state in _IDLE_STATES and self._trainer.pid is not None
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
        wanted = (self._idle.next_deadline(), self._manager.next_deadline(), metrics_at)
        return min((one for one in wanted if one is not None), default=None)

    def stopping(self) -> None:
        """The loop has ended."""
        self._manager.stopping()
        if self._metrics is not None:
            self._metrics.stop()


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


def _in_words(job: Job, *, connected: bool, ready: bool) -> str:
    """Describe the agent for `systemctl status`; nothing of it leaves the device."""
    status = job.status()
    doing = "loading the task" if not ready else str(job.state)
    if status is not None:
        doing = f"{job.state}, round {status.round} of run {status.run}"
    return doing if connected else f"{doing}; not connected to the broker"


_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_PATIENCE_S = 1.0

_service_log = logging.getLogger("fedpatch.service")


class ServiceManager:
    """Connection to systemd.

    Args:
        address: Socket of the service manager, "" for none.
        watchdog_s: Longest silence before systemd restarts the service; 0 for no watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._every_s = watchdog_s / 2 if address else 0.0
        self._alive_at: float | None = None
        self._status = ""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """Read the connection from the environment, and remove its variables so that no child process inherits them."""
        address, every_us, pid = (environ.pop(name, "") for name in _VARIABLES)
        ours = every_us.isdecimal() and (not pid or pid == str(os.getpid()))
        return cls(address, int(every_us) / 1e6 if ours else 0.0)

    def doing(self, status: str, now: float) -> None:
        """Send the status if it is new; the first call also reports that the service is ready."""
        if self._alive_at is None:
            self._alive_at = now
            self._send("READY=1", f"STATUS={status}")
        elif status != self._status:
            self._send(f"STATUS={status}")
        self._status = status

    def tick(self, now: float) -> None:
        """Send WATCHDOG=1 twice as often as systemd demands."""
        due = self.next_deadline()
        if due is not None and now >= due:
            self._alive_at = now
            self._send("WATCHDOG=1")

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due."""
        return self._alive_at + self._every_s if self._alive_at is not None and self._every_s else None

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        message = "\n".join(" ".join(line.split()) for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.settimeout(_PATIENCE_S)
                one.sendto(message.encode(), self._address)
        except OSError as error:
            _service_log.debug("cannot send %s to systemd: %s", lines, error)
