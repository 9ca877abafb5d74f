"""Preview of admission: whether this device would accept work now, computed outside the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.policy.owner_limits import DAMAGED, UNKNOWN_FLOOR, damaged_status, least_without_model
from fedpatch.device_agent.policy.owner_policy import decide, parse_admission_mode, text_of
from fedpatch.device_agent.policy.preferences import Objection, Preferences, unmet_preferences
from fedpatch.device_agent.policy.privacy_budget import DAMAGED_ACCOUNT
from fedpatch.device_agent.policy.usage import local_now, read_today
from fedpatch.device_agent.runtime.startup import observer_of, privacy_of
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.shared.errors import StateError


@dataclass(frozen=True)
class AdmissionPreview:
    """The present facts, the answer to a work request, and every objection, also if the answer is yes.

    `private` describes the tensors that must stay on this device (owner_limits.least_without_model).
    """

    facts: Facts
    verdict: AdmissionDecision
    objections: tuple[Objection, ...]
    private: Mapping[str, Any]

    @property
    def why_not(self) -> list[str]:
        """The reasons to decline, in words; none if the answer is yes."""
        if self.verdict.accept:
            return []
        words = [one.words for one in self.objections]
        if self.verdict.condition is not None:  # an unmet preference
            return words
        return [self.verdict.why, *words] if self.verdict in (UNKNOWN_FLOOR, DAMAGED_ACCOUNT) else [self.verdict.why]


def look(settings: AgentSettings, root: Path = Path("/")) -> AdmissionPreview:
    """Look once, as the agent does, but without its earlier observations; `root` holds /sys, /proc and /run."""
    directory = settings.state_dir.absolute()
    order = parse_admission_mode(settings.admission)
    facts = observer_of(settings, directory, root).observe()
    # The name of a task given by its module is known only after loading it.
    task = "" if ":" in settings.task else settings.task
    objections = unmet_preferences(Preferences.of(settings), facts, read_today(directory), local=local_now(), task=task)
    try:
        private = least_without_model(settings.private, directory / PATCHES, task)
    except StateError as error:  # the conditions can still be shown
        private = damaged_status(error)
    verdict = decide(order, text_of(order), objections)
    if privacy_of(settings, directory).declines:
        verdict = DAMAGED_ACCOUNT
    if private["source"] == DAMAGED:
        verdict = UNKNOWN_FLOOR
    return AdmissionPreview(facts, verdict, objections, private)
