"""Who is there, who can be asked, and whose last will counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.shared.wire.messages import Decline, TaskCapability
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason
from tests.support.specs import SCHEMA, TASK, TASKS, gone, there

OTHER = TaskCapability("mnist", SCHEMA, 5)


def fleet() -> Fleet:
    """With one device that has the task."""
    known = Fleet(TASK)
    assert known.update("a", there())
    return known


def test_devices_online_with_the_task_are_eligible():
    known = fleet()
    known.update("c", there())
    known.update("b", there(tasks=(OTHER, *TASKS)))
    known.update("d", there(tasks=(OTHER,)))
    known.update("e", gone())
    assert known.eligible() == ["a", "b", "c"]


def test_last_will_counts_for_its_own_connection_only():
    known = fleet()
    assert known.update("a", gone())
    assert known.eligible() == []
    assert known.update("a", there("b2"))
    assert not known.update("a", gone("b1"))
    assert known.eligible() == ["a"]
    assert (known.boot("a"), known.boot("stranger")) == ("b2", "")


def test_bar_lasts_through_reconnections():
    known = fleet()
    known.bar("a", "schema_mismatch")
    assert known.eligible() == []
    known.update("a", there())
    known.update("a", gone())
    known.update("a", there())
    assert known.eligible() == []


def test_bar_ends_with_a_restart_or_other_tasks():
    known = fleet()
    known.bar("a", "schema_mismatch")
    known.update("a", there("b2"))
    assert known.eligible() == ["a"]
    known.bar("a", "schema_mismatch")
    known.update("a", there("b2", tasks=(OTHER, *TASKS)))
    assert known.eligible() == ["a"]


def test_notes_about_unknown_devices_are_ignored():
    known = fleet()
    known.bar("stranger", "schema_mismatch")
    known.rest("stranger", "not_charging", 60.0)
    known.note_version("stranger", "0" * 64)
    assert set(known.members) == {"a"}
    assert (known.version("stranger"), known.next_pause_end()) == ("", None)


def test_unwilling_device_is_not_eligible_until_its_presence_changes():
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.NOT_CHARGING))
    assert known.eligible() == []
    assert known.unwilling() == {"not_charging": 1}
    known.update("a", there())
    assert known.eligible() == ["a"]
    assert not known.unwilling()


def test_resting_device_is_not_eligible_before_its_time():
    known = fleet()
    known.rest("a", "quiet_hours", until=100.0)
    known.update("a", there())
    known.update("a", gone())
    known.update("a", there())
    known.wake(99.0)
    assert known.eligible() == []
    assert known.next_pause_end() == 100.0
    known.wake(100.0)
    assert known.eligible() == ["a"]
    assert known.next_pause_end() is None


def test_later_rest_replaces_the_earlier():
    known = fleet()
    known.rest("a", "too_hot", until=10.0)
    known.rest("a", "too_hot", until=20.0)
    known.wake(15.0)
    assert known.eligible() == []
    known.wake(20.0)
    assert known.eligible() == ["a"]


def test_changed_presence_ends_a_rest():
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.NOT_CHARGING))
    known.rest("a", "not_charging", until=100.0)
    known.update("a", there())
    assert known.eligible() == ["a"]


def test_offline_or_barred_devices_are_not_counted_as_unwilling():
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.METERED))
    known.update("b", replace(there(), unwilling=Condition.METERED))
    known.update("c", replace(there(), unwilling=Condition.METERED))
    known.update("b", gone())
    known.bar("c", "schema_mismatch")
    assert known.unwilling() == {"metered": 1}


class TestWhoIsMissing:
    def test_missing_text_names_held_and_starting_devices(self):
        known = fleet()
        known.hold({"a": "drained"})
        known.update("b", replace(there(), tasks=()))
        assert known.missing_text(2, 5.0) == (
            "0 of 2 devices came within 5 s, and 1 more are still starting 300 s later; see the logs of their agents, "
            "start fewer of them on one machine, or give them longer with --wait-s; "
            "1 of those that are there are held back, as a: drained"
        )

    def test_missing_text_counts_no_offline_device_as_present(self):
        known = fleet()
        known.update("b", there())
        for device in "ab":
            known.declined(device, Decline(DeclineReason.PRIVATE_POLICY, "not mine"), 0.0)
        known.update("a", gone())
        text = known.missing_text(2, 5.0)
        assert "1 of those that are there cannot take part, as b: not mine. 1 declined with private_policy" in text


PASSING = {DeclineReason.UNWILLING, DeclineReason.STORAGE}


@pytest.mark.parametrize("reason", [reason for reason in DeclineReason if reason not in PASSING], ids=str)
def test_lasting_decline_bars_the_device(reason):
    known = fleet()
    known.declined("a", Decline(reason, "why"), 0.0)
    known.wake(1e9)
    assert known.eligible() == []


@pytest.mark.parametrize("reason", sorted(PASSING), ids=str)
def test_passing_decline_rests_the_device(reason):
    known = fleet()
    known.declined("a", Decline(reason, "why", retry_after_s=300.0), 0.0)
    known.wake(299.0)
    assert known.eligible() == []
    known.wake(301.0)
    assert known.eligible() == ["a"]


def test_unwilling_decline_without_a_time_bars_nobody():
    known = fleet()
    known.declined("a", Decline(DeclineReason.UNWILLING, "on battery"), 0.0)
    assert known.eligible() == ["a"]
