"""Codes of declines for coordinators of each version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.device_agent.job.decline_compatibility import ADDED_WITH, for_coordinator
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.messages import Decline
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.device_agent.jobs import REQUEST

# A masked round asks for a base, so its coordinator knows `base_spent`.
OF_ALL_VERSIONS = {
    *(DeclineReason.UNWILLING, DeclineReason.UNKNOWN_TASK, DeclineReason.SCHEMA_MISMATCH),
    *(DeclineReason.UNSUPPORTED, DeclineReason.TOO_LITTLE_DATA, DeclineReason.BASE_SPENT),
}


@pytest.mark.parametrize("reason", DeclineReason, ids=str)
def test_code_stays_where_the_coordinator_knows_it_and_else_is_one_of_all_versions(reason):
    decline = Decline(reason, "why", None, 5.0)
    assert for_coordinator(decline, replace(REQUEST, features=COORDINATOR_FEATURES)) == decline
    older = for_coordinator(decline, replace(REQUEST, features=()))
    assert older.reason in OF_ALL_VERSIONS
    assert replace(older, reason=reason) == decline
    assert (reason in ADDED_WITH) == (reason not in OF_ALL_VERSIONS)


@pytest.mark.parametrize("feature", COORDINATOR_FEATURES)
@pytest.mark.parametrize("reason", ADDED_WITH, ids=str)
def test_code_needs_the_one_feature_that_it_came_with(reason, feature):
    sent = for_coordinator(Decline(reason), replace(REQUEST, features=(feature,))).reason
    assert (sent is reason) == (feature == ADDED_WITH[reason][0])
