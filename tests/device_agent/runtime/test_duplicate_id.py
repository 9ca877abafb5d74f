"""Another agent with the same id is distinguished from the agent's own earlier state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.shared.wire.messages import DeviceState

ME, OTHER = (DeviceState(online=True, boot=boot) for boot in ("mine", "another"))
WILL = DeviceState(online=False, boot="another")


def reconnected() -> DuplicateIdDetector:
    """A detector on its second connection. Its own state was received on the first; an earlier state could still follow."""
    namesake = DuplicateIdDetector("mine", 100.0)
    namesake.connected()
    assert not namesake.observe(ME, 1.0)
    assert not namesake.observe(OTHER, 1.0)
    namesake.connected()
    return namesake


def found() -> DuplicateIdDetector:
    """A detector that saw another agent at second 10."""
    namesake = reconnected()
    assert namesake.observe(OTHER, 10.0)
    return namesake


def test_other_boot_on_a_later_connection_is_found_once():
    namesake = found()
    assert namesake.detected
    namesake.connected()
    assert not namesake.observe(OTHER, 10.0)
    assert namesake.detected


def test_former_boot_from_a_broker_with_an_old_copy_is_not_another():
    namesake = DuplicateIdDetector("mine", 100.0, former_boots=["another"])
    namesake.connected()
    assert not namesake.observe(ME, 1.0)
    namesake.connected()
    assert not namesake.observe(OTHER, 2.0)
    assert not namesake.detected


def test_duplicate_without_messages_is_taken_to_be_gone():
    namesake = found()
    assert (namesake.tick(109.9), namesake.next_deadline()) == (False, 110.0)
    assert namesake.tick(110.0)
    assert (namesake.detected, namesake.next_deadline(), namesake.tick(111.0)) == (False, None, False)
    namesake.connected()
    assert namesake.observe(OTHER, 112.0)


@given(st.lists(st.sampled_from(("connect", "echo", "will")), max_size=30), st.integers(0, 30))
def test_an_agent_that_is_alone_never_finds_another(events, former):
    """For any reconnects and late wills; the agent's earlier state may arrive until its own state was received."""
    namesake, received = DuplicateIdDetector("mine", 1e9), False
    for second, event in enumerate(events):
        if event == "connect":
            namesake.connected()
            if not received and second < former:
                namesake.observe(OTHER, float(second))
        elif event == "will":
            namesake.observe(WILL, float(second))
        else:
            namesake.observe(ME, float(second))
            received = True
    assert not namesake.detected
