"""Who is there, who can be asked, and whose last will counts."""

from __future__ import annotations

from coordinator.fleet import Fleet
from shared.messages import TaskCapability
from tests.specs import SCHEMA, TASK, TASKS, gone, there

OTHER = TaskCapability("mnist", SCHEMA, 5)


def fleet() -> Fleet:
    """With one device that has the task."""
    known = Fleet(TASK)
    assert known.see("a", there())
    return known


def test_devices_with_the_task_can_be_asked():
    """Those that are online and have it, in the order of their names."""
    known = fleet()
    known.see("c", there())
    known.see("b", there(tasks=(OTHER, *TASKS)))
    known.see("d", there(tasks=(OTHER,)))
    known.see("e", gone())
    assert known.eligible() == ["a", "b", "c"]


def test_a_device_that_is_gone_is_not_asked():
    """Its last will takes it out, its return puts it back."""
    known = fleet()
    assert known.see("a", gone())
    assert known.eligible() == []
    assert known.see("a", there())
    assert known.eligible() == ["a"]


def test_the_will_of_a_connection_before_does_not_count():
    """A device that has restarted since is not dead."""
    known = fleet()
    known.see("a", there("b2"))
    assert not known.see("a", gone("b1"))
    assert known.eligible() == ["a"]
    assert known.boot("a") == "b2"
    assert known.boot("stranger") == ""


def test_a_bar_lasts_while_the_device_is_the_same():
    """Neither time nor a broken connection changes what a device said of itself."""
    known = fleet()
    known.bar("a", "schema_mismatch")
    assert known.eligible() == []
    known.see("a", there())
    known.see("a", gone())
    known.see("a", there())
    assert known.eligible() == []


def test_a_bar_ends_with_a_restart_or_other_tasks():
    """The owner may have mended what was wrong."""
    known = fleet()
    known.bar("a", "schema_mismatch")
    known.see("a", there("b2"))
    assert known.eligible() == ["a"]
    known.bar("a", "schema_mismatch")
    known.see("a", there("b2", tasks=(OTHER, *TASKS)))
    assert known.eligible() == ["a"]


def test_a_stranger_cannot_be_barred():
    """A device that never showed itself is no member."""
    known = fleet()
    known.bar("stranger", "schema_mismatch")
    assert set(known.members) == {"a"}
