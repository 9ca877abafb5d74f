"""When watchers are told: seldom, when something is new, and never where it would be a burden."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fedpatch.coordinator.observability.snapshot import Snapshot
from fedpatch.coordinator.observability.status_publisher import LEAST_S, REPEAT_S, StatusPublisher
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import RunStatus
from tests.coordinator.fake_link import RecordedLink
from tests.coordinator.observability.test_live_view import WAITING
from tests.support.specs import RUN, TASK, run_spec


class Told:
    """A feed, and what it has published."""

    def __init__(self) -> None:
        self.link = RecordedLink()
        self.feed = StatusPublisher(self.link, "home", run_spec())

    def at(self, now: float, present: int = 0, stopped: str = "", **changes: object) -> bool:
        """Whether this is told at that time."""
        before = len(self.link.published)
        snapshot: Snapshot = replace(WAITING, present=present, **changes)  # type: ignore[arg-type]
        self.feed.tell(snapshot, stopped, now)
        return len(self.link.published) > before

    @property
    def last(self) -> Envelope:
        """What was told last."""
        topic, payload, retain = self.link.published[-1]
        assert (topic, retain) == ("fedpatch/1/home/coord/progress", False)
        return decode(payload)


@pytest.fixture
def told() -> Told:
    """One that has said nothing yet."""
    return Told()


def test_what_is_told_names_the_run_and_its_round(told):
    """On the topic for watchers, not retained."""
    assert told.at(0.0, present=3, round=7)
    assert (told.last.run, told.last.task, told.last.epoch, told.last.round) == (RUN, TASK, 1, 7)
    assert isinstance(told.last.body, RunStatus)
    assert told.last.body.present == 3


def test_changes_are_told_once_a_second_at_most(told):
    """However many there are."""
    times = [now / 10 for now in range(100)]
    said = [now for present, now in enumerate(times) if told.at(now, present)]
    assert said == [float(second) for second in range(10)]
    assert min(b - a for a, b in pairwise(said)) >= LEAST_S


def test_what_has_not_changed_is_told_again_but_seldom(told):
    """For whoever has just come; that time passes is no change."""
    said = [
        now for now in range(21) if told.at(float(now), elapsed_s=float(now), eta_s=50.0 - now, pause_s=1.0 / (now + 1))
    ]
    assert said == [0, 5, 10, 15, 20]
    assert REPEAT_S == 5.0


def test_other_messages_go_first(told):
    """While the link has something to send, watchers wait, though not for ever."""
    told.link.idle = False
    assert [now for now in range(12) if told.at(float(now), present=now)] == [0, 5, 10]


def test_without_a_connection_nothing_is_told(told):
    """Nor is it kept for later; what is told then is what is true then."""
    assert told.at(0.0)
    told.feed.disconnected(20.0)
    assert not told.at(21.0, present=1)
    told.feed.connected()
    assert told.at(22.0, present=2)
    assert told.last.body.present == 2


def test_the_end_is_told_at_once(told):
    """With its reason."""
    assert told.at(0.0)
    told.link.idle = False
    assert told.at(0.1, stopped="target_ua")
    assert told.last.body.stopped == "target_ua"


def test_a_broker_that_ends_the_connection_at_it_is_spared(told, caplog):
    """After the third connection that ended at the first message; a connection that lives on proves that it is allowed."""
    for start in (0.0, 100.0, 200.0):
        assert told.at(start)
        for moment in range(3):
            told.feed.disconnected(start + 0.1 + moment)  # and two attempts that fail
        told.feed.connected()
    assert not told.at(300.0, present=1)
    assert "allow the coordinator to write it" in caplog.text


def test_a_connection_that_ends_later_is_not_the_messages_fault(told):
    """A line that breaks every minute is no broker that forbids."""
    for start in range(0, 600, 60):
        assert told.at(start + 0.0)
        assert told.at(start + 10.0)
        told.feed.disconnected(start + 50.0)
        told.feed.connected()
