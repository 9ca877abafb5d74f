"""The content of status.json while the agent runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.runtime.agent_ports import LimitsPort, OwnerPort
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.presence import Presence
from fedpatch.device_agent.runtime.request_admission import RequestAdmission
from fedpatch.device_agent.runtime.settings_in_force import SettingsInForce
from fedpatch.device_agent.state.status_file import StatusFile
from fedpatch.shared.wire.messages import TaskCapability

# Traffic of the day in status.json is a multiple of this.
TOLD_BYTES = 64 * 2**10
STOPPED = "stopped"


class StatusWriter:
    """Writes status.json. The parts of the agent are only read.

    Args:
        file: The file.
        job: The state machine of work requests.
        runner: Performs the job's effects.
        owner: The owner's preferences.
        limits: The owner's limits.
        admission: The admission of requests.
        presence: Publishes the device's state.
        settings: The settings in force; None where they are not the agent's own.
    """

    def __init__(
        self,
        file: StatusFile,
        job: Job,
        runner: EffectRunner,
        owner: OwnerPort,
        limits: LimitsPort,
        admission: RequestAdmission,
        presence: Presence,
        settings: SettingsInForce | None,
    ) -> None:
        self._file = file
        self._job = job
        self._runner = runner
        self._owner = owner
        self._limits = limits
        self._admission = admission
        self._presence = presence
        self._settings = settings

    def write(self, state: str, tasks: Sequence[TaskCapability], network_open: str, now: float) -> None:
        """Write the file if its content has changed.

        Args:
            state: State of the job, `starting` or STOPPED.
            network_open: Why the task's code can open connections; "" if it cannot.
            now: Monotonic seconds.
        """
        job = self._job.status()
        stopped = state == STOPPED
        problems = (self._presence.problem, self._admission.storage_problem)
        self._file.write(
            {
                "state": str(state),
                "connected": self._presence.connected and not stopped,
                "run": job.run if job else None,
                "round": job.round if job else None,
                "tasks": [{"task": t.task, "schema": t.schema, "num_examples": t.num_examples} for t in tasks],
                "paused": self._job.paused,
                "unwilling": list(self._owner.words),
                "refused": self._admission.refused,
                "terms": self._limits.terms(),
                "spent": self._spent_today(now),
                "settings": {} if self._settings is None else self._settings.status(),
                "declines": self._limits.declines
                or self._admission.storage_problem
                or ("" if stopped else self._presence.problem),
                "private": self._limits.status(),
                "privacy": {} if self._limits.privacy is None else self._limits.privacy.status(),
                "network_open": network_open,
                "last_outcome": self._runner.last_outcome,
                "problem": "" if stopped else "; ".join(filter(None, problems)),
            }
        )

    def _spent_today(self, now: float) -> dict[str, float]:
        """Return the usage of the day, rounded down: each change is written to the disk."""
        spent = self._owner.spent_today(now)
        coarse_bytes, minutes = spent.traffic_bytes // TOLD_BYTES * TOLD_BYTES, spent.training_s // 60.0
        return {"rounds": spent.rounds, "traffic_bytes": coarse_bytes, "training_s": 60.0 * minutes}
