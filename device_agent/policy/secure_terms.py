"""The owner's terms for masked rounds: whether an update may leave unmasked, in how small a group, and with how long a step."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import check_terms
from fedpatch.shared.masking.keys import is_available
from fedpatch.shared.wire.masking_messages import SecureTerms, ThresholdRule
from fedpatch.shared.wire.messages import WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason

OFF, ALLOWED, REQUIRED = SECURE_MODES = ("off", "allowed", "required")
MIN_GROUP = 8


@dataclass(frozen=True)
class SecureLimits:
    """The owner's terms for masked rounds.

    Attributes:
        mode: One of SECURE_MODES. "required": no update leaves unmasked, even if a coordinator asks for it.
        min_group: Smallest group that the coordinator may form.
        clip: Longest L2 norm of a step that a request may allow; 0: any. A smaller clip lets less of this device through.
        min_threshold: Least rule for the number of members that must reveal; with two_thirds keys must be signed too.
        signs: Whether this device can sign its keys with a certificate of the fleet's CA.

    Example:
        >>> SecureLimits("off").offers, SecureLimits("required").forbids_unmasked
        (False, True)
    """

    mode: str = ALLOWED
    min_group: int = MIN_GROUP
    clip: float = 0.0
    min_threshold: ThresholdRule = ThresholdRule.HALF
    signs: bool = False

    @property
    def offers(self) -> bool:
        """True if this device masks updates: its owner allows it, and `cryptography` is installed."""
        return self.mode != OFF and is_available()

    @property
    def forbids_unmasked(self) -> bool:
        """True if no update may leave unmasked."""
        return self.mode == REQUIRED

    def refusal(self, request: WorkRequest) -> AdmissionDecision | None:
        """Return why a request is below the owner's terms; None where it is not."""
        terms = request.secure
        if terms is None:
            if not self.forbids_unmasked:
                return None
            return _no(DeclineReason.INSECURE_REQUEST, "the owner lets no update leave this device unmasked")
        if why := self._impossible(request, terms):
            return _no(DeclineReason.UNSUPPORTED, why)
        if terms.group_min < self.min_group:
            why = f"groups may have {terms.group_min} devices; the owner's limit is min_group = {self.min_group}"
            return _no(DeclineReason.SECURE_TERMS, why)
        if self.clip and terms.clip > self.clip:
            why = f"a step may have a norm of {terms.clip:g}; the owner's limit is clip = {self.clip:g}"
            return _no(DeclineReason.SECURE_TERMS, why)
        if self.min_threshold is ThresholdRule.TWO_THIRDS and not terms.strict:
            why = (
                "keys are not signed, and half of a group may open it; the owner's limit is min_threshold = two_thirds"
            )
            return _no(DeclineReason.SECURE_TERMS, why)
        return None

    def _impossible(self, request: WorkRequest, terms: SecureTerms) -> str:
        """Return why this device cannot follow the terms; "" where it can."""
        if terms.strict and not self.signs:
            return "keys must be signed, and this device has no certificate of its fleet's CA (cert_file, ca_file)"
        if request.plan.moments:
            return "moments of the optimizer cannot be masked"
        try:
            check_terms(terms, request.encoding if request.masks else f"masked-u{terms.bits}")
        except WireError as error:
            return f"terms of the masked round: {error}"
        return ""


def _no(reason: DeclineReason, why: str) -> AdmissionDecision:
    return AdmissionDecision(False, why, reason=reason)
