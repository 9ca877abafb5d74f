"""Conditions under which the coordinator publishes its status."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedpatch.coordinator.observability.status_publisher import LEAST_S, REPEAT_S, StatusPublisher
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import RunStatus
from tests.coordinator.fake_link import RecordedLink
from tests.coordinator.observability.statuses import waiting
from tests.support.specs import RUN, TASK, run_spec


class Publishing:
    def __init__(self) -> None:
        self.link = RecordedLink()
        self.publisher = StatusPublisher(self.link, "home", run_spec())

    def at(self, now: float, present: int = 0, **fields: object) -> bool:
        """Offer a status, and return whether it was published."""
        before = len(self.link.published)
        self.publisher.publish(waiting(present=present, **fields), now)
        return len(self.link.published) > before

    @property
    def last(self) -> Envelope:
        topic, payload, retain = self.link.published[-1]
        assert (topic, retain) == ("fedpatch/1/home/coord/progress", False)
        return decode(payload)


@pytest.fixture
def publishing() -> Publishing:
    """A publisher that has published nothing yet."""
    return Publishing()


def test_message_names_run_task_epoch_and_round(publishing):
    assert publishing.at(0.0, present=3, round=7)
    last = publishing.last
    assert (last.run, last.task, last.epoch, last.round) == (RUN, TASK, 1, 7)
    assert isinstance(last.body, RunStatus)
    assert last.body.present == 3


def test_silent_store_is_published_with_the_last_status(publishing):
    publishing.at(0.0, present=3, round=7)
    for words in ("s3://fleet has not answered for 20 s", ""):
        publishing.publisher.publish_silence(words)
        last = publishing.last
        assert isinstance(last.body, RunStatus)
        assert (last.round, last.body.present, last.body.silent_stores or "") == (7, 3, words)


def test_changed_status_is_published_at_most_once_a_second(publishing):
    times = [now / 10 for now in range(100)]
    published = [now for present, now in enumerate(times) if publishing.at(now, present)]
    assert published == [float(second) for second in range(10)]
    assert min(b - a for a, b in pairwise(published)) >= LEAST_S


def test_unchanged_status_is_repeated_every_five_seconds(publishing):
    published = [
        now
        for now in range(21)
        if publishing.at(float(now), elapsed_s=float(now), eta_s=50.0 - now, pause_s=1.0 / (now + 1))
    ]
    assert published == [0, 5, 10, 15, 20]
    assert REPEAT_S == 5.0


def test_status_waits_at_most_five_seconds_for_a_busy_connection(publishing):
    publishing.link.idle = False
    assert [now for now in range(12) if publishing.at(float(now), present=now)] == [0, 5, 10]


def test_without_a_connection_no_status_is_published_or_kept(publishing):
    assert publishing.at(0.0)
    publishing.publisher.disconnected(20.0)
    assert not publishing.at(21.0, present=1)
    publishing.publisher.connected()
    assert publishing.at(22.0, present=2)
    assert publishing.last.body.present == 2


def test_end_of_the_run_is_published_at_once(publishing):
    assert publishing.at(0.0)
    publishing.link.idle = False
    assert publishing.at(0.1, stopped="target_ua")
    assert publishing.last.body.stopped == "target_ua"


def test_broker_that_ends_three_connections_at_the_first_status_gets_no_more(publishing, caplog):
    for start in (0.0, 100.0, 200.0):
        assert publishing.at(start)
        for attempt in range(3):
            publishing.publisher.disconnected(start + 0.1 + attempt)  # the connection ends, then two attempts fail
        publishing.publisher.connected()
    assert not publishing.at(300.0, present=1)
    assert "allow the coordinator to write it" in caplog.text


def test_connection_that_ends_later_does_not_stop_the_publisher(publishing):
    """A connection that breaks once a minute does not mean that the broker forbids the topic."""
    for start in range(0, 600, 60):
        assert publishing.at(start + 0.0)
        assert publishing.at(start + 10.0)
        publishing.publisher.disconnected(start + 50.0)
        publishing.publisher.connected()
