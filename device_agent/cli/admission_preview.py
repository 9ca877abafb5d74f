"""Preview of admission: whether this device would accept work now, computed outside the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.device_agent.cli.status import in_force_in_words
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.policy.admission_file import text_of
from fedpatch.device_agent.policy.admission_mode import decide, parse_admission_mode
from fedpatch.device_agent.policy.floor_status import DAMAGED, damaged_status, least_without_model
from fedpatch.device_agent.policy.local_time import local_now
from fedpatch.device_agent.policy.objections import Objection
from fedpatch.device_agent.policy.owner_limits import UNKNOWN_FLOOR, terms_in_words
from fedpatch.device_agent.policy.secure_limits import REQUIRED
from fedpatch.device_agent.policy.unmet_preferences import Preferences, unmet_preferences
from fedpatch.device_agent.policy.usage import read_today
from fedpatch.device_agent.runtime.agent_composition import observer_of, privacy_of
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.status_file import read_standing
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.shared.errors import FedpatchError, StateError


@dataclass(frozen=True)
class AdmissionPreview:
    """The present facts, the answer to a work request, and every objection, also if the answer is yes.

    `counted` are the objections that count with the admission mode: with another one than preferences, a pause alone.
    `private` describes the tensors that must stay on this device (floor_status.least_without_model). `terms` are what a
    request must have. `of_agent` are the reasons of the agent that runs with this state directory, which knows the last
    request. `differences` are the settings that are not those of this agent. `damage` is what makes the answer no whatever the
    owner wants, with its remedy: the record of what stayed private, or the account of privacy.
    """

    facts: Facts
    verdict: AdmissionDecision
    objections: tuple[Objection, ...]
    counted: tuple[Objection, ...]
    private: Mapping[str, Any]
    terms: tuple[str, ...] = ()
    of_agent: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    damage: str = ""

    @property
    def why_not(self) -> list[str]:
        """The reasons to decline, in words; none if the answer is yes."""
        found = [] if self.verdict.accept else self._own_reasons()
        return [*found, *(words for words in self.of_agent if words not in found)]

    def _own_reasons(self) -> list[str]:
        words = [one.words for one in self.counted]
        if self.verdict.condition is not None:  # an unmet preference
            return words
        if not self.damage:
            return [self.verdict.why]
        return words if self.of_agent else [self.damage, *words]  # a running agent says it too


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
    privacy = privacy_of(settings, directory)
    damage = privacy.declines
    if damage:
        verdict = privacy.answer_without_account
    if private["source"] == DAMAGED:
        verdict, damage = UNKNOWN_FLOOR, str(private["words"])
    terms = terms_in_words(masked=settings.secure == REQUIRED, private=privacy.required)
    status = _running_status(directory)
    differences = in_force_in_words("these settings", status.get("settings", {}), settings)
    return AdmissionPreview(
        facts,
        verdict,
        objections,
        order.objections(objections),
        private,
        tuple(terms),
        tuple(_reasons_of_agent(status)),
        tuple(differences),
        damage,
    )


def _running_status(directory: Path) -> Mapping[str, Any]:
    """Return the status of the agent that runs with this state directory; empty for none."""
    try:
        standing = read_standing(directory)
    except FedpatchError:
        return {}
    return standing.status if standing.running else {}


def _reasons_of_agent(status: Mapping[str, Any]) -> list[str]:
    """Return the reasons of a running agent that are not computed here: a problem, the last request, the allowance with it."""
    if declines := status.get("declines"):
        return [f"every request is declined: {declines}"]
    if refused := status.get("refused"):
        return [f"a request like the last one is declined: {refused}"]
    return [str(words) for words in status.get("unwilling", ()) if "MiB to come" in str(words)]
