"""The conditions that count in each phase of the work."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.policy.conditions_of_phase import objections_that_count
from fedpatch.device_agent.policy.objections import Objection
from fedpatch.shared.wire.reason_codes import Condition

NETWORK = {Condition.NOT_WIFI, Condition.OTHER_SSID, Condition.METERED, Condition.TRAFFIC_SPENT}


@pytest.mark.parametrize("state", JobState, ids=str)
@pytest.mark.parametrize("condition", Condition, ids=str)
def test_training_counts_no_condition_of_the_network_and_an_upload_only_them_and_the_pause(state, condition):
    counts = {
        JobState.TRAINING: condition not in NETWORK,
        JobState.UPLOADING: condition in NETWORK or condition is Condition.PAUSED,
    }.get(state, True)
    objections = (Objection(condition, "why", 60.0),)
    assert objections_that_count(objections, state) == (objections if counts else ())
