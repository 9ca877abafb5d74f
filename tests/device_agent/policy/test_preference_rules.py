"""The records of preferences: one for each setting and condition."""

from __future__ import annotations

from fedpatch.device_agent.policy.preference_rules import ALLOWED_IF_UNKNOWN, FACT_PREFERENCES, PREFERENCES
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.wire.reason_codes import Condition


def test_each_preference_setting_has_a_record():
    named = {
        one.name for one in settings_of(PreferenceSettings) if one.rules.group in ("Preferences", "Daily allowance")
    }
    assert PREFERENCES.keys() == named - {"unknown"}


def test_each_condition_but_the_pause_is_that_of_one_preference():
    assert sorted([*(one.condition for one in PREFERENCES.values()), Condition.PAUSED]) == sorted(Condition)


def test_each_record_has_a_retry_time_or_an_end_and_a_default_where_a_fact_decides():
    assert all(one.retry_after_s > 0 or one.ends for one in PREFERENCES.values())
    assert ALLOWED_IF_UNKNOWN.keys() == FACT_PREFERENCES.keys() | {"quiet_hours"}
