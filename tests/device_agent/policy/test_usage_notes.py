"""The times at which the usage of the current work is noted."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.policy.usage import Usage
from fedpatch.device_agent.policy.usage_notes import NOTE_BYTES, NOTE_IDLE_BYTES, NOTE_TRAINING_S, is_note_due


@pytest.mark.parametrize(
    ("spent", "at_work", "idle"),
    [
        (Usage(), False, False),
        (Usage(rounds=1), False, True),
        (Usage(training_s=1.0), False, True),
        (Usage(training_s=NOTE_TRAINING_S - 1), False, True),
        (Usage(training_s=NOTE_TRAINING_S), True, True),
        (Usage(traffic_bytes=NOTE_IDLE_BYTES - 1), False, False),
        (Usage(traffic_bytes=NOTE_IDLE_BYTES), False, True),
        (Usage(traffic_bytes=NOTE_BYTES - 1), False, True),
        (Usage(traffic_bytes=NOTE_BYTES), True, True),
    ],
)
def test_usage_is_noted_at_the_limits_of_work_and_after_it(spent, at_work, idle):
    assert is_note_due(spent, working=True) is at_work
    assert is_note_due(spent, working=False) is idle
