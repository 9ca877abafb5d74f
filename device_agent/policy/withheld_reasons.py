"""The reasons that an owner with `share_reasons = false` withholds: declines, failures and presence are sent without them."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.shared.wire.messages import Body, Decline, DeviceState, Failed
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason

# Time until the next request after a decline without a reason.
SILENT_RETRY_S = 600.0


def without_reason(body: Body) -> Body:
    """Return a decline, a failure or a presence as an owner who tells no reasons sends it; other messages stay.

    The time until the next request is always the same: that of quiet hours would tell when they end.
    """
    match body:
        case Decline():
            return Decline(DeclineReason.UNWILLING, retry_after_s=SILENT_RETRY_S)
        case Failed():
            return Failed(FailReason.UNWILLING)
        case DeviceState():
            return replace(body, unwilling=None)
    return body
