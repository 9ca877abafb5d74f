"""Messages without the reasons that an owner withholds."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.policy.withheld_reasons import SILENT_RETRY_S, without_reason
from fedpatch.shared.wire.messages import Accept, Decline, DeviceState, Failed
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason


@pytest.mark.parametrize("reason", DeclineReason, ids=str)
def test_decline_without_reason_is_unwilling_and_names_the_same_time_for_all(reason):
    sent = without_reason(Decline(reason, "quiet hours", Condition.QUIET_HOURS, 7200.0))
    assert sent == Decline(DeclineReason.UNWILLING, retry_after_s=SILENT_RETRY_S)


@pytest.mark.parametrize("reason", FailReason, ids=str)
def test_failure_without_reason_is_unwilling_without_condition(reason):
    assert without_reason(Failed(reason, Condition.TOO_HOT)) == Failed(FailReason.UNWILLING)


def test_presence_without_reason_names_no_condition_and_other_messages_stay():
    state = DeviceState(online=True, boot="b", unwilling=Condition.OTHER_SSID)
    assert without_reason(state) == DeviceState(online=True, boot="b")
    assert without_reason(Accept(3)) == Accept(3)
