"""The automatic deadline, derived from earlier rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.auto_deadline import (
    DEADLINE_WINDOW,
    LONGEST_DEADLINE_S,
    SHORTEST_DEADLINE_S,
    auto_deadline_s,
    policy_of,
)
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.rounds.run_events import Aggregated, DevicePresence, ModelPublished, TimePassed
from fedpatch.shared.wire.messages import Accept, Progress, WorkRequest
from fedpatch.shared.wire.reason_codes import JobPhase
from tests.coordinator.engines import asking, current, engine, report_of, send
from tests.support.specs import model, run_spec, sent, there


def good(number: int = 1, p90_s: float | None = 100.0, deadline_s: float = 600.0) -> RoundRecord:
    """Return the record of a round that made a model."""
    return RoundRecord(number, "aggregated", 4, 4, 0, 4, deadline_s=deadline_s, report_p90_s=p90_s)


def failed(deadline_s: float, took_s: float, p90_s: float | None = None) -> RoundRecord:
    """Return the record of a round that missed its quorum after `took_s` seconds."""
    seconds = PhaseSeconds(select=1.0, recruit=2.0, train=took_s - 2.0)
    return RoundRecord(
        2,
        "failed",
        4,
        4,
        0,
        3,
        phase_seconds=seconds,
        failure="quorum_missed",
        deadline_s=deadline_s,
        report_p90_s=p90_s,
    )


class TestAutoDeadline:
    @pytest.mark.parametrize(
        ("records", "recruit_s", "deadline_s"),
        [
            pytest.param([], 10.0, 600.0, id="first round"),
            pytest.param([good(p90_s=100.0)], 10.0, 300.0, id="three times the time of nine in ten updates"),
            pytest.param([good(p90_s=s) for s in (100.0, 5000.0, 110.0)], 10.0, 330.0, id="median of the rounds"),
            pytest.param(
                [good(p90_s=s) for s in [10.0] * 50 + [200.0] * DEADLINE_WINDOW], 10.0, 600.0, id="last rounds"
            ),
            pytest.param([good(p90_s=0.2)], 10.0, 60.0, id="at least a minute"),
            pytest.param([good(p90_s=0.2)], 100.0, 200.0, id="as long for work as for recruiting"),
            pytest.param([failed(600.0, took_s=600.0)], 10.0, 1200.0, id="doubled where it was used up"),
            pytest.param([failed(600.0, 600.0), failed(1200.0, 1215.0)], 10.0, 2400.0, id="doubled again"),
            pytest.param([failed(600.0, took_s=60.0)], 10.0, 600.0, id="failed early"),
            pytest.param([good(), failed(300.0, took_s=20.0)], 10.0, 300.0, id="failed early after a success"),
            pytest.param(
                [failed(600.0, 600.0, p90_s=50.0), good(p90_s=40.0, deadline_s=1200.0)], 10.0, 135.0, id="doubling ends"
            ),
            pytest.param([RoundRecord(1, "aggregated", 4, 4, 0, 4)], 10.0, 600.0, id="record of an earlier version"),
        ],
    )
    def test_deadline_follows_from_the_records(self, records, recruit_s, deadline_s):
        assert auto_deadline_s(records, recruit_s) == deadline_s

    @given(
        times=st.lists(st.none() | st.floats(0.0, 1e7), max_size=30),
        recruit_s=st.floats(0.01, 1e6),
        last_s=st.floats(1.0, 1e6),
    )
    def test_any_records_the_deadline_is_within_its_bounds(self, times, recruit_s, last_s):
        records = [*(good(p90_s=s) for s in times), failed(last_s, took_s=last_s)]
        deadline_s = auto_deadline_s(records, recruit_s)
        assert max(SHORTEST_DEADLINE_S, 2 * recruit_s) <= deadline_s <= max(LONGEST_DEADLINE_S, 2 * recruit_s)


class TestPolicy:
    def test_auto_deadline_replaces_the_deadline_of_the_policy_only(self):
        spec = run_spec(deadline_s=600.0, auto_deadline=True, quorum=0.5)
        assert (policy_of(spec, []).deadline_s, policy_of(spec, [good()]).deadline_s) == (600.0, 300.0)
        assert policy_of(spec, [good()]).quorum == 0.5
        assert policy_of(run_spec(deadline_s=300.0), [good(p90_s=1.0)]).deadline_s == 300.0


class TestRounds:
    def test_deadline_of_the_second_round_follows_from_the_first(self):
        made = asking("ab", deadline_s=600.0, auto_deadline=True, quorum=0.5, grace_s=100.0)
        for device, second in (("a", 20.0), ("b", 50.0)):
            send(made, "b", Accept(10), 1.0)
            report_of(made, device, second)
        made.handle(Aggregated(), 50.0)
        assert (made.records[0].deadline_s, made.records[0].report_p90_s) == (600.0, 50.0)
        requests = [
            body for _, body in sent(made.handle(ModelPublished(model()), 51.0)) if isinstance(body, WorkRequest)
        ]
        assert [request.deadline_s for request in requests] == [150.0, 150.0]

    def test_time_limit_of_the_run_bounds_the_deadline(self):
        made = asking("a", deadline_s=600.0, auto_deadline=True, time_limit_s=45.0)
        assert current(made).round.policy.deadline_s == 45.0

    def test_resumed_run_has_the_same_deadline(self):
        made = engine([good(p90_s=100.0)], epoch=2, devices=1, deadline_s=600.0, auto_deadline=True)
        made.handle(DevicePresence("a", there()), 0.0)
        made.handle(ModelPublished(model()), 0.0)
        assert current(made).round.policy.deadline_s == 300.0

    @pytest.mark.parametrize("work_s", [900.0, 2000.0])
    def test_fleet_slower_than_the_first_deadline_makes_a_model(self, work_s):
        made = asking("a", deadline_s=600.0, auto_deadline=True, grace_s=10.0, rounds=9, wait_s=60.0)
        now = begun = 0.0
        while not any(record.outcome == "aggregated" for record in made.records):
            assert made.stopped is None
            number = made.last_round
            if made.open is None:
                now += 1.0
                made.handle(TimePassed(), now)
                if made.open is not None:
                    made.handle(ModelPublished(model()), now)
                    begun = now
                continue
            send(made, "a", Accept(10), now, number)
            if now - begun >= work_s:
                report_of(made, "a", now)
                made.handle(Aggregated(), now)
                break
            now += 5.0
            send(made, "a", Progress(JobPhase.TRAINING, 1, 2), now, number)
            made.handle(TimePassed(), now)
        assert made.records[-1].outcome == "aggregated"
