"""The owner's terms for masked rounds: whether updates are masked, and the weakest terms that are accepted."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.device_agent.job.job_events import AdmissionDecision, decline
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
        mode: One of SECURE_MODES. "required": no update or measurement leaves unmasked, even if a coordinator asks for it.
        min_group: Smallest group that the coordinator may form.
        clip: Longest L2 norm of a step that a request may allow; 0: any. A smaller clip passes on less of this device's step.
        min_threshold: Weakest accepted rule for the number of members that must reveal; with two_thirds, keys must also be
            signed.
        signs: Whether this device can sign its keys with a certificate of the fleet's CA.
        min_colluders: Least number of members whose noise of differential privacy does not count.
        max_weight_cap: Greatest weight of a device, in examples; 0: any.

    Example:
        >>> SecureLimits("off").offers, SecureLimits("required").forbids_unmasked
        (False, True)
    """

    mode: str = ALLOWED
    min_group: int = MIN_GROUP
    clip: float = 0.0
    min_threshold: ThresholdRule = ThresholdRule.HALF
    signs: bool = False
    min_colluders: int = 0
    max_weight_cap: int = 0

    @property
    def offers(self) -> bool:
        """True if this device masks updates: its owner allows it, and `cryptography` is installed."""
        return self.mode != OFF and is_available()

    @property
    def forbids_unmasked(self) -> bool:
        """True if no update or measurement may leave unmasked."""
        return self.mode == REQUIRED

    def refusal(self, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request that does not meet the owner's terms; None if it does."""
        terms = request.secure
        # A measurement is sent unmasked, with the number of examples, even if its request has terms of masking.
        if self.forbids_unmasked and (terms is None or request.evaluates):
            why = "the owner lets no update or measurement leave this device unmasked"
            return decline(DeclineReason.INSECURE_REQUEST, why)
        if terms is None:
            return None
        if request.evaluates:
            return decline(
                DeclineReason.UNSUPPORTED, "a measurement is not masked, and the request has terms for masks"
            )
        if why := self._impossible(request, terms):
            return decline(DeclineReason.UNSUPPORTED, why)
        why = self.too_weak(terms) or self._too_little_noise(request, terms)
        return decline(DeclineReason.SECURE_TERMS, why) if why else None

    def _too_little_noise(self, request: WorkRequest, terms: SecureTerms) -> str:
        colluders = terms.colluders or 0
        if request.privacy is None or colluders >= self.min_colluders:
            return ""
        return f"the noise counts on {colluders} colluders; the owner's limit is min_colluders = {self.min_colluders}"

    def too_weak(self, terms: SecureTerms) -> str:
        """Return how terms fall short of the owner's limits; "" where they do not."""
        if terms.group_min < self.min_group:
            return f"groups may have {terms.group_min} devices; the owner's limit is min_group = {self.min_group}"
        if self.clip and terms.clip > self.clip:
            return f"a step may have a norm of {terms.clip:g}; the owner's limit is clip = {self.clip:g}"
        if self.max_weight_cap and terms.weight_cap > self.max_weight_cap:
            limit = f"the owner's limit is max_weight_cap = {self.max_weight_cap}"
            return f"a device may have the weight of {terms.weight_cap} examples; {limit}"
        if self.min_threshold is ThresholdRule.TWO_THIRDS and not terms.strict:
            return (
                "keys are not signed, and half of a group may open it; the owner's limit is min_threshold = two_thirds"
            )
        return ""

    def _impossible(self, request: WorkRequest, terms: SecureTerms) -> str:
        """Return why this device cannot follow the terms; "" where it can."""
        if terms.strict and not self.signs:
            return "keys must be signed, and this device has no certificate of its fleet's CA (cert_file, ca_file)"
        if request.plan.moments:
            return "moments of the optimizer cannot be masked"
        if not request.content:
            return "the request does not name the values of its model; update the coordinator"
        try:
            check_terms(terms, request.encoding if request.masks else f"masked-u{terms.bits}")
        except WireError as error:
            return f"terms of the masked round: {error}"
        return ""
