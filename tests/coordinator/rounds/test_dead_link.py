"""A round in which no device is heard checks the link to the broker before it fails."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.link_check import LINK_CHECK_S, LINK_NEWS_S
from fedpatch.coordinator.rounds.run_effects import CheckLink
from fedpatch.coordinator.rounds.run_events import ChunkReceived, DevicePresence, LinkChanged, TimePassed
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Decline
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.coordinator.engines import BLOB, asking, current, report_all, send
from tests.support.specs import gone, update


def checks(made, until: float) -> list[tuple[float, CheckLink]]:
    """Let the time pass; return the checks of the link with their time."""
    found, now = [], 0.0
    while made.open is not None and (deadline := made.next_deadline()) is not None and deadline <= until:
        now = deadline
        found += [(now, one) for one in made.handle(TimePassed(), now) if isinstance(one, CheckLink)]
    return found


def test_round_without_a_sign_of_life_checks_the_link_once_and_then_fails():
    made = asking("abc", deadline_s=600.0)
    assert checks(made, 60.0) == [(10.0, CheckLink(1, LINK_CHECK_S))]
    assert (made.records[0].failure, made.records[0].seconds) == (
        "too_few_accepted",
        10.0 + LINK_CHECK_S + LINK_NEWS_S,
    )


@pytest.mark.parametrize("after_s", [0.0, 1.0])
def test_dead_link_costs_no_round(after_s):
    """The link is given up when the time of the check is over, and is back half a minute later; the round then goes on."""
    made = asking("abc", deadline_s=600.0)
    found_at = 10.0 + LINK_CHECK_S + after_s
    assert [now for now, _ in checks(made, found_at)] == [10.0]
    made.handle(LinkChanged(connected=False), found_at)
    assert checks(made, 43.0) == []
    made.handle(LinkChanged(connected=True), 43.0)
    report_all(made, "abc", 45.0)
    assert (made.records, current(made).round.quorum_s) == ([], 45.0)


def test_link_that_stays_down_ends_the_round_at_its_deadline():
    made = asking("abc", deadline_s=60.0)
    made.handle(LinkChanged(connected=False), 5.0)
    checks(made, 100.0)
    assert (made.records[0].failure, made.records[0].seconds) == ("too_few_accepted", 60.0)


HEARD = {
    "presence": lambda made: made.handle(DevicePresence("a", gone()), 1.0),
    "message": lambda made: send(made, "a", Decline(DeclineReason.UNWILLING, "")),
    "chunk": lambda made: made.handle(ChunkReceived("a", cut(BLOB, update(BLOB), 0)), 1.0),
}


@pytest.mark.parametrize("heard", HEARD.values(), ids=HEARD)
def test_round_that_has_heard_anything_checks_nothing(heard):
    made = asking("abc", deadline_s=600.0)
    heard(made)
    assert checks(made, 60.0) == []


def test_link_that_was_down_while_devices_could_answer_is_not_checked_again():
    made = asking("abc", deadline_s=600.0)
    made.handle(LinkChanged(connected=False), 5.0)
    assert checks(made, 10.0) == []
    made.handle(LinkChanged(connected=True), 15.0)
    assert checks(made, 60.0) == []
    assert (made.records[0].failure, made.records[0].seconds) == ("too_few_accepted", 25.0)


def test_round_that_ends_soon_checks_the_link_too():
    made = asking("abc", deadline_s=10.5)
    assert checks(made, 60.0) == [(10.0, CheckLink(1, LINK_CHECK_S))]
