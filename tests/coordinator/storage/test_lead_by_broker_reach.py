"""When a leader without the broker gives the lead up, and when a coordinator without it may take a free one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.storage.lead_by_broker_reach import BROKERLESS_S, BrokerReach
from fedpatch.shared.errors import LeadershipGivenUp


def session(*, another_reaches: bool) -> Any:
    """A session of a fleet in which another coordinator reaches the broker, or none does."""
    return SimpleNamespace(execute=lambda *_: SimpleNamespace(scalar=lambda: another_reaches))


@pytest.mark.parametrize(
    ("lost_at", "another_reaches", "gives_up"),
    [(10.0, True, True), (10.0, False, False), (10.001, True, False), (None, True, False)],
)
def test_leader_gives_up_after_the_time_without_a_broker_if_a_standby_reaches_it(lost_at, another_reaches, gives_up):
    reach, now = BrokerReach("lab"), 10.0 + BROKERLESS_S
    reach.lost(0.0)
    reach.found()
    if lost_at is not None:
        reach.lost(lost_at)
        reach.lost(now)  # a later note of the same outage
    if gives_up:
        with pytest.raises(LeadershipGivenUp):
            reach.give_up_if_due(session(another_reaches=another_reaches), now)
    else:
        reach.give_up_if_due(session(another_reaches=another_reaches), now)


@pytest.mark.parametrize("another_reaches", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("reaches", [False, True])
def test_free_lead_is_for_a_coordinator_with_the_broker_or_for_one_that_starts_alone(reaches, waits, another_reaches):
    may = BrokerReach("lab").may_take_lead(session(another_reaches=another_reaches), reaches=reaches, waits=waits)
    assert may is (reaches or (not waits and not another_reaches))
