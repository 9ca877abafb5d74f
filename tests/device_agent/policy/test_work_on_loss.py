"""The current work when a preference is no longer met."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.policy.objections import Objection
from fedpatch.device_agent.policy.work_on_loss import OnLoss, action_on_loss
from fedpatch.shared.wire.reason_codes import Condition

BRIEF = Objection(Condition.TOO_HOT, "it has 81 °C", 120.0)
LONG = Objection(Condition.NOT_CHARGING, "it runs on its battery", 900.0)
TO_THE_LIMIT = Objection(Condition.QUIET_HOURS, "quiet hours, until 07:00", 600.0, exact=True)
NIGHT = Objection(Condition.QUIET_HOURS, "quiet hours, until 07:00", 600.1, exact=True)


@pytest.mark.parametrize("chosen", OnLoss, ids=str)
@pytest.mark.parametrize(
    ("objections", "is_in_vain"),
    [((BRIEF,), False), ((LONG,), False), ((TO_THE_LIMIT,), False), ((NIGHT,), True), ((BRIEF, NIGHT), True)],
    ids=["brief", "long, not exact", "to the limit", "beyond the limit", "two"],
)
def test_only_a_pause_that_surely_exceeds_its_limit_becomes_an_abandon(chosen, objections, is_in_vain):
    expected = OnLoss.ABANDON if is_in_vain and chosen is OnLoss.PAUSE else chosen
    assert action_on_loss(chosen, objections, 600.0) is expected
