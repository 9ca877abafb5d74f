"""The code of a decline that the coordinator knows: an older one would ignore a message with an unknown code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedpatch.shared.wire.features import MASKED_REASONS_FEATURE, OWNER_LIMITS_FEATURE, PRIVACY_FEATURE, STORAGE_FEATURE
from fedpatch.shared.wire.messages import Decline, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason

# The coordinator's feature that a code came with, and the code for a coordinator without it. All coordinators know the others.
ADDED_WITH: Mapping[DeclineReason, tuple[str, DeclineReason]] = {
    DeclineReason.STORAGE: (STORAGE_FEATURE, DeclineReason.UNWILLING),
    DeclineReason.PRIVATE_POLICY: (OWNER_LIMITS_FEATURE, DeclineReason.UNSUPPORTED),
    DeclineReason.PLAN_LIMIT: (OWNER_LIMITS_FEATURE, DeclineReason.UNSUPPORTED),
    DeclineReason.PRIVACY_SPENT: (PRIVACY_FEATURE, DeclineReason.UNSUPPORTED),
    DeclineReason.PRIVACY_REQUIRED: (PRIVACY_FEATURE, DeclineReason.UNSUPPORTED),
    DeclineReason.INSECURE_REQUEST: (MASKED_REASONS_FEATURE, DeclineReason.UNSUPPORTED),
    DeclineReason.SECURE_TERMS: (MASKED_REASONS_FEATURE, DeclineReason.UNSUPPORTED),
}


def for_coordinator(decline: Decline, request: WorkRequest) -> Decline:
    """Return a decline with a code that the sender of the request knows.

    Args:
        request: The request, with the coordinator's features.
    """
    reason = DeclineReason(decline.reason)
    feature, older = ADDED_WITH.get(reason, ("", reason))
    return decline if not feature or feature in request.features else replace(decline, reason=older)
