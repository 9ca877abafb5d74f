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


def test_devices_with_the_task_can_be_asked():
    """Those that are online and have it, in the order of their names."""
    known = fleet()
    known.update("c", there())
    known.update("b", there(tasks=(OTHER, *TASKS)))
    known.update("d", there(tasks=(OTHER,)))
    known.update("e", gone())
    assert known.eligible() == ["a", "b", "c"]


def test_a_device_that_is_gone_is_not_asked():
    """Its last will takes it out, its return puts it back."""
    known = fleet()
    assert known.update("a", gone())
    assert known.eligible() == []
    assert known.update("a", there())
    assert known.eligible() == ["a"]


def test_the_will_of_a_connection_before_does_not_count():
    """A device that has restarted since is not dead."""
    known = fleet()
    known.update("a", there("b2"))
    assert not known.update("a", gone("b1"))
    assert known.eligible() == ["a"]
    assert known.boot("a") == "b2"
    assert known.boot("stranger") == ""


def test_a_bar_lasts_while_the_device_is_the_same():
    """Neither time nor a broken connection changes what a device said of itself."""
    known = fleet()
    known.bar("a", "schema_mismatch")
    assert known.eligible() == []
    known.update("a", there())
    known.update("a", gone())
    known.update("a", there())
    assert known.eligible() == []


def test_a_bar_ends_with_a_restart_or_other_tasks():
    """The owner may have mended what was wrong."""
    known = fleet()
    known.bar("a", "schema_mismatch")
    known.update("a", there("b2"))
    assert known.eligible() == ["a"]
    known.bar("a", "schema_mismatch")
    known.update("a", there("b2", tasks=(OTHER, *TASKS)))
    assert known.eligible() == ["a"]


def test_nothing_is_noted_of_a_stranger():
    """A device that never showed itself is no member, whatever is said of it."""
    known = fleet()
    known.bar("stranger", "schema_mismatch")
    known.rest("stranger", "not_charging", 60.0)
    known.note_version("stranger", "0" * 64)
    assert set(known.members) == {"a"}
    assert (known.version("stranger"), known.next_pause_end()) == ("", None)


def test_a_device_that_says_it_would_decline_is_not_asked():
    """Until its presence says that its owner's conditions hold again."""
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.NOT_CHARGING))
    assert known.eligible() == []
    assert known.unwilling() == {"not_charging": 1}
    known.update("a", there())
    assert known.eligible() == ["a"]
    assert not known.unwilling()


def test_a_device_is_not_asked_before_the_time_it_named():
    """However often the broker tells its presence again, or its connection breaks meanwhile."""
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


def test_a_device_that_names_a_later_time_rests_until_then():
    """The first alarm does not end the second rest."""
    known = fleet()
    known.rest("a", "too_hot", until=10.0)
    known.rest("a", "too_hot", until=20.0)
    known.wake(15.0)
    assert known.eligible() == []
    known.wake(20.0)
    assert known.eligible() == ["a"]


def test_a_presence_with_news_ends_a_rest():
    """Plugged in at last: that is worth a question before the time it named."""
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.NOT_CHARGING))
    known.rest("a", "not_charging", until=100.0)
    known.update("a", there())
    assert known.eligible() == ["a"]


def test_those_that_are_gone_or_barred_do_not_count_as_unwilling():
    """Only who could be asked is told of."""
    known = fleet()
    known.update("a", replace(there(), unwilling=Condition.METERED))
    known.update("b", replace(there(), unwilling=Condition.METERED))
    known.update("c", replace(there(), unwilling=Condition.METERED))
    known.update("b", gone())
    known.bar("c", "schema_mismatch")
    assert known.unwilling() == {"metered": 1}


class TestWhoIsMissing:
    def test_names_held_back_devices_while_another_is_starting(self):
        """All that there is to know, once."""
        known = fleet()
        known.hold({"a": "drained"})
        known.update("b", replace(there(), tasks=()))
        assert known.missing_text(2, 5.0) == (
            "0 of 2 devices came within 5 s, and 1 more are still starting 300 s later; see the logs of their agents, "
            "start fewer of them on one machine, or give them longer with --wait-s; "
            "1 of those that are there are held back, as a: drained"
        )

    def test_counts_no_device_that_is_gone_among_those_that_are_there(self):
        """Two cannot take part, and one of them is offline."""
        known = fleet()
        known.update("b", there())
        for device in "ab":
            known.declined(device, Decline(DeclineReason.PRIVATE_POLICY, "not mine"), 0.0)
        known.update("a", gone())
        text = known.missing_text(2, 5.0)
        assert "1 of those that are there cannot take part, as b: not mine. 1 declined with private_policy" in text


PASSING = {DeclineReason.UNWILLING, DeclineReason.STORAGE}


@pytest.mark.parametrize("reason", [reason for reason in DeclineReason if reason not in PASSING], ids=str)
def test_a_lasting_reason_bars_the_device(reason):
    """Asking again cannot help until the device changes."""
    known = fleet()
    known.declined("a", Decline(reason, "why"), 0.0)
    known.wake(1e9)
    assert known.eligible() == []


@pytest.mark.parametrize("reason", sorted(PASSING), ids=str)
def test_decline_that_passes_lets_the_device_rest(reason):
    """Files that a person moves away change neither its boot nor its tasks."""
    known = fleet()
    known.declined("a", Decline(reason, "why", retry_after_s=300.0), 0.0)
    known.wake(299.0)
    assert known.eligible() == []
    known.wake(301.0)
    assert known.eligible() == ["a"]


def test_unwillingness_without_a_time_bars_nobody():
    """The next round may suit the owner better."""
    known = fleet()
    known.declined("a", Decline(DeclineReason.UNWILLING, "on battery"), 0.0)
    assert known.eligible() == ["a"]
