"""The requests of the hub that a relay accepts: it can pass them on, and its site can run their round.

The owners of the site's devices have limits of their own, which their agents keep.
"""

from __future__ import annotations

import logging
from typing import Any

from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.job.training_messages import Ready
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget
from fedpatch.device_agent.policy.secure_limits import OFF, SecureLimits
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site import Site
from fedpatch.relay.site_members import Needs
from fedpatch.relay.site_round import site_authorities
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.masking.group_context import highest_code
from fedpatch.shared.masking.site_sum import most_devices
from fedpatch.shared.wire.masking_messages import MIN_GROUP, SecureTerms
from fedpatch.shared.wire.messages import Manifest, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason

_UNLIMITED = 2**53

_log = logging.getLogger("fedpatch.relay")


def unsupported(request: WorkRequest) -> str:
    """Name the part of a request that a relay cannot pass on, with the remedy; "" if it can pass on all.

    Args:
        request: The hub's request.
    """
    reasons = {
        "differential privacy, whose account counts devices of one coordinator": request.privacy is not None,
        "control variates, whose mean the hub forms over single devices": request.plan.has_controls,
        "a measurement of learning alone": request.measure_independent and request.secure is None,
    }
    found = next((words for words, asked in reasons.items() if asked), "")
    return f"a relay does not pass on {found}; have the devices take part without a relay" if found else ""


class RelayLimits:
    """The LimitsPort of a relay's agent.

    Args:
        settings: The relay's settings.
        site: The site.
    """

    def __init__(self, settings: RelaySettings, site: Site) -> None:
        # The limits of a device whose owner limits nothing: an update still holds only the tensors that its request names.
        self._device = OwnerLimits(
            settings.device_dir / PATCHES,
            private="none",
            max_steps=_UNLIMITED,
            max_epochs=_UNLIMITED,
            secure=SecureLimits(OFF, min_group=MIN_GROUP, signs=True),
        )
        self._settings = settings
        self._site = site

    @property
    def privacy(self) -> PrivacyBudget | None:
        """None: a relay passes on no request with differential privacy."""
        return self._device.privacy

    @property
    def declines(self) -> str:
        """The damage because of which every request is declined."""
        return self._device.declines

    def take(self, ready: Ready) -> None:
        """Take the model and the figures of the site."""
        self._device.take(ready)

    def why_not_send(self, request: WorkRequest | None, manifest: Manifest) -> str:
        """Return why an update must not leave the relay; "" if it may."""
        return self._device.why_not_send(request, manifest)

    def terms(self) -> list[str]:
        """Return what a request must have, in words."""
        return self._device.terms()

    def status(self) -> dict[str, Any]:
        """Return what stays private, for status.json."""
        return self._device.status()

    def refusal(self, task: str, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request; None if the relay accepts it."""
        if why := unsupported(request):
            return AdmissionDecision(False, why, reason=DeclineReason.UNSUPPORTED)
        if (condition := self._site.summary.unwilling) is not None:
            return AdmissionDecision(False, "too few devices of the site would take part", condition)
        refused = self._site_refusal(request)
        return self._device.refusal(task, request) if refused is None else refused

    def _site_refusal(self, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a round that the site cannot run; None if it can."""
        needs = Needs.of(request.plan, request.secure, evaluates=request.evaluates)
        able, least = self._site.summary.able(needs), self._settings.min_cohort
        members = sum(one.members * count for one, count in able.items())
        if members < needs.group_min:
            why = f"too few devices of the site would mask updates: a group has at least {needs.group_min}"
            return AdmissionDecision(False, why)
        if (devices := sum(able.values())) < least:
            why = f"{devices} willing devices of the site know {', '.join(sorted(needs.features))}, and min_cohort is {least}"
            return AdmissionDecision(False, why)
        return None if request.secure is None else self._masked_refusal(request.secure, members)

    def _masked_refusal(self, terms: SecureTerms, members: int) -> AdmissionDecision | None:
        """Return the decision to decline if the relay cannot sum so many devices under these terms; None if it can."""
        fits = most_devices(highest_code(terms.bits, terms.group_max))
        if members > fits:
            why = f"the sum of {members} devices does not fit 32 bits, which hold that of {fits}; split the site"
            return AdmissionDecision(False, why, reason=DeclineReason.UNSUPPORTED)
        try:
            site_authorities(self._settings, terms)
        except FedpatchError as error:
            # The decline goes to the hub, which learns no path of the site.
            _log.error("the site: %s", str(error).replace("set ca_file", "set down_ca_file"))
            why = "this relay cannot use the CA of its site (down_ca_file); its log names the remedy"
            return AdmissionDecision(False, why, reason=DeclineReason.UNSUPPORTED)
        return None
