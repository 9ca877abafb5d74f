"""Admission of a work request, cheap refusals first: they need neither the disk nor the owner.

Then come another agent of this name, the owner's limits, the storage, and last the owner's preferences.
"""

from __future__ import annotations

import logging

from fedpatch.device_agent.job.download_plan import DownloadPlan, expected_bytes
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.job_events import AdmissionDecision, decline
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.runtime.agent_ports import LimitsPort, OwnerPort
from fedpatch.device_agent.runtime.presence import Presence
from fedpatch.device_agent.state.storage_check import Storage
from fedpatch.shared.wire.messages import Envelope, TaskCapability, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason

_log = logging.getLogger("fedpatch.agent")

TWIN = decline(DeclineReason.UNWILLING, "another agent uses the name of this device")
"""The answer while two cards are on with one name: each would spend the allowance and the privacy budget of the device."""


REFUSED = decline(DeclineReason.UNSUPPORTED, "this device cannot serve the request")
"""The decision on a request that the job refuses by itself; the answer has the job's own reason."""


class RequestAdmission:
    """Decides on work requests.

    Args:
        job: The state machine of work requests, which is only read.
        presence: Knows whether another agent has this name.
        limits: The owner's limits.
        storage: The check of the device's storage.
        owner: The owner's preferences.

    Attributes:
        refused: Why the last request was beyond the owner's limits; "" if it was not.
        storage_problem: What the device cannot store, with the remedy; "" for none.
    """

    def __init__(self, job: Job, presence: Presence, limits: LimitsPort, storage: Storage, owner: OwnerPort) -> None:
        self.refused = ""
        self.storage_problem = ""
        self._job = job
        self._presence = presence
        self._limits = limits
        self._storage = storage
        self._owner = owner

    def decide(
        self,
        envelope: Envelope,
        request: WorkRequest,
        tasks: tuple[TaskCapability, ...],
        plan: DownloadPlan,
        now: float,
    ) -> AdmissionDecision | None:
        """Decide on a request; None until there are fresh facts.

        Args:
            plan: The download that leads to the request's model.
            now: Monotonic seconds.
        """
        if self._job.refuses(envelope.task, request, tasks):
            self.refused = ""
            return REFUSED
        is_current = self._job.is_on(JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task))
        refusal = TWIN if self._presence.has_twin and not is_current else self._limits.refusal(envelope.task, request)
        self.refused = refusal.why if refusal else ""
        # A repeated request for the current job is not checked: the job has its space already.
        decision = refusal or (None if is_current else self._check_storage(envelope, request, plan))
        return decision or self._owner.decide(envelope.task, expected_bytes(request, plan), now)

    def _check_storage(self, envelope: Envelope, request: WorkRequest, plan: DownloadPlan) -> AdmissionDecision | None:
        """Decline if this device could not store what the round needs; log and status have the remedy."""
        problem = self._storage.problem(envelope.task, request, plan)
        text = problem.text if problem else ""
        if text != self.storage_problem:
            self.storage_problem = text
            if text:
                _log.error("%s; until then every round is declined", text)
            else:
                _log.info("what a round needs can be stored again")
        return problem.verdict if problem else None
