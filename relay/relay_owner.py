"""When a relay takes work from its hub: always, while its site is willing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpatch.device_agent.job.job_events import AdmissionDecision, FromOwner
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.policy.admission_mode import parse_admission_mode
from fedpatch.device_agent.policy.local_time import local_now
from fedpatch.device_agent.policy.own_load import OwnLoadAverage
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.policy.unmet_preferences import Preferences
from fedpatch.device_agent.policy.usage import JobUsage, Usage, UsageFile
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.relay.site import Site
from fedpatch.shared.wire.reason_codes import Condition


class _NoFacts:
    """A relay has no facts about a device to look up."""

    def ask(self) -> None:
        """Do nothing."""


class RelayOwner:
    """The OwnerPort of a relay's agent. Its usage is noted as that of a device.

    Args:
        directory: State directory of the device side.
        site: The site.

    Attributes:
        meter: Usage of the current work.
        unwilling: The condition for which the site is unwilling, as of the last `tick`; None while it is willing.
    """

    def __init__(self, directory: Path, site: Site) -> None:
        self._device = OwnerPolicy(
            parse_admission_mode("always"),
            Preferences.of(PreferenceSettings()),
            usage=UsageFile(directory),
            watcher=_NoFacts(),
            local_now=local_now,
            own_memory_mib=lambda: 0.0,
            own_load=OwnLoadAverage(1, 1),
        )
        self._site = site
        self.meter: JobUsage = self._device.meter
        self.unwilling: Condition | None = None

    def tick(self, job: Job, now: float) -> None:
        """Let time pass, and copy the site's willingness."""
        self._device.tick(job, now)
        self._site.busy = job.key is not None
        self.unwilling = self._site.summary.unwilling

    @property
    def words(self) -> tuple[str, ...]:
        """No preference is unmet: the site has none of its own."""
        return self._device.words

    @property
    def facts(self) -> Facts | None:
        """None: there are no facts."""
        return self._device.facts

    def decide(self, task: str, traffic_bytes: int, now: float) -> AdmissionDecision | None:
        """Accept a work request."""
        return self._device.decide(task, traffic_bytes, now)

    def use(self, preferences: Preferences) -> None:
        """Follow other preferences from now on."""
        self._device.use(preferences)

    def update_facts(self, facts: Facts, job: Job, tasks: Sequence[str], now: float) -> list[FromOwner]:
        """Take new facts and return the events for the current work."""
        return self._device.update_facts(facts, job, tasks, now)

    def next_deadline(self, job: Job) -> float | None:
        """Return the time at which `tick` is due."""
        return self._device.next_deadline(job)

    def spent_today(self, now: float) -> Usage:
        """Return the usage of this day, including the current work."""
        return self._device.spent_today(now)

    def stop(self, now: float) -> None:
        """Note the usage of the job so far, as the agent ends."""
        self._device.stop(now)
