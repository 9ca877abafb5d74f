"""When an engine opens a round, when it waits, and what it says at the end."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.participant_transitions import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.run_effects import Effect, PublishModel, SaveRecord
from fedpatch.coordinator.rounds.run_engine import RETRY_S, Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    DevicePresence,
    Interrupted,
    LinkChanged,
    ModelPublished,
    RunStarted,
    TimePassed,
)
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.rounds.run_spec import Stopped
from fedpatch.shared.wire.messages import Body, Committed, Decline
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason
from tests.coordinator import engines
from tests.coordinator.engines import end_of, join
from tests.support.specs import model, run_spec, there, told, update


def engine(*devices: str, **changes: Any) -> Engine:
    """An engine that was started at second 0 and knows these devices."""
    started = engines.engine(**changes)
    join(started, devices)
    return started


def opened(effects: list[Effect]) -> list[int]:
    """Numbers of the rounds that begin."""
    return [effect.round for effect in effects if isinstance(effect, PublishModel)]


def all_decline(current: Engine, now: float, reason: DeclineReason = DeclineReason.UNWILLING) -> list[Effect]:
    """A round in which every device says no."""
    current.handle(ModelPublished(model()), now)
    number = current.last_round
    return [
        effect
        for device in sorted(current.fleet.members)
        for effect in engines.send(current, device, Decline(reason, "not today"), now, number)
    ]


class TestUnwilling:
    """Devices that are there, but whose owners' preferences come first."""

    def test_device_is_not_invited_before_its_retry_time(self):
        current = engine("a", "b", rounds=9, devices=2, quorum=0.5)
        current.handle(ModelPublished(model()), 0.0)
        for device, retry_s in (("a", 0.0), ("b", 50.0)):
            engines.send(current, device, Decline(DeclineReason.UNWILLING, "", Condition.TOO_HOT, retry_s), 0.0)
        deadline = current.next_deadline()
        assert deadline is not None
        assert opened(current.handle(TimePassed(), deadline)) == [2]
        invited = current.handle(ModelPublished(model()), deadline)
        assert [device for device, _ in told(invited)] == ["a"]
        assert current.records[0].decline_reasons == {"too_hot": 2}

    def test_round_waits_for_the_first_device_whose_rest_ends(self):
        current = engine("a", rounds=9, max_failed_rounds=2)
        current.handle(ModelPublished(model()), 0.0)
        engines.send(current, "a", Decline(DeclineReason.UNWILLING, "", Condition.QUIET_HOURS, 40.0), 0.0)
        now = 0.0
        while current.open is None:
            deadline = current.next_deadline()
            assert deadline is not None and deadline > now
            now = deadline
            current.handle(TimePassed(), now)
        assert now == 40.0
        assert len(current.records) == 1

    def test_end_names_the_conditions_of_unwilling_devices(self):
        current = engine(wait_s=30.0)
        current.handle(DevicePresence("a", replace(there(), unwilling=Condition.NOT_CHARGING)), 0.0)
        end = end_of(current.handle(TimePassed(), 30.0))
        assert "unwilling: not_charging 1" in end.detail


class TestPause:
    """Between a round that failed and the next."""

    def test_pause_doubles_with_each_failure(self):
        current = engine("a", max_failed_rounds=4, rounds=9)
        now, pauses = 0.0, []
        for number in (1, 2, 3):
            assert opened(all_decline(current, now)) == []
            deadline = current.next_deadline()
            assert deadline is not None
            assert opened(current.handle(TimePassed(), deadline - 0.01)) == []
            assert opened(current.handle(TimePassed(), deadline)) == [number + 1]
            pauses.append(deadline - now)
            now = deadline
        assert pauses == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]

    def test_pause_is_at_most_wait_s(self):
        current = engine("a", wait_s=0.5)
        all_decline(current, 10.0)
        assert current.next_deadline() == 10.5

    def test_pause_after_thousands_of_failures_is_a_minute(self):
        current = engine("a", rounds=9999, max_failed_rounds=9999)
        now = 0.0
        for _ in range(2000):
            all_decline(current, now)
            now = current.next_deadline() or now
            current.handle(TimePassed(), now)
        all_decline(current, now)
        assert current.next_deadline() == now + 60.0

    def test_run_ends_after_max_failed_rounds(self):
        current = engine("a", max_failed_rounds=2, recruit_deadline_s=RETRY_S)
        all_decline(current, 0.0)
        current.handle(TimePassed(), RETRY_S)
        end = end_of(all_decline(current, RETRY_S))
        detail = "2 rounds in a row failed, the last one: too_few_accepted, with 0 of the 1 updates needed"
        assert (end.reason, end.detail) == (Stopped.FAILED, detail)

    def test_failures_within_the_recruit_deadline_count_as_one(self):
        current = engine("a", max_failed_rounds=2, rounds=99, recruit_deadline_s=10.0)
        now = 0.0
        while all_decline(current, now) and current.stopped is None:
            now = current.next_deadline() or now
            current.handle(TimePassed(), now)
        assert current.stopped is Stopped.FAILED
        assert now == 14.0  # at 0, 2, 6 and 14 seconds

    def test_successful_round_is_followed_at_once(self):
        current = engine("a")
        assert current.handle(TimePassed(), 0.0) == []  # the model is not published yet
        assert play(current, "a", 2.0) == [2]


class TestLink:
    """What the coordinator's own connection means for rounds."""

    def test_no_round_begins_without_a_broker(self):
        current = engine()
        current.handle(LinkChanged(connected=False), 0.0)
        assert opened(current.handle(DevicePresence("a", there()), 1.0)) == []
        assert opened(current.handle(LinkChanged(connected=True), 500.0)) == [1]

    def test_wait_s_begins_when_the_broker_is_there(self):
        current = engine(wait_s=60.0)
        current.handle(LinkChanged(connected=False), 10.0)
        current.handle(TimePassed(), 500.0)
        current.handle(LinkChanged(connected=True), 500.0)
        current.handle(TimePassed(), 559.0)
        assert current.stopped is None
        end_of(current.handle(TimePassed(), 560.0))


class TestEnd:
    """What is said of a run that cannot go on, or need not."""

    @pytest.mark.parametrize(
        ("reason", "words"),
        [
            (DeclineReason.SCHEMA_MISMATCH, "0 of 2 devices"),
            (DeclineReason.PRIVATE_POLICY, "2 declined with private_policy: "),
            (DeclineReason.PRIVATE_POLICY, "set `private` of their agents"),
            (DeclineReason.PLAN_LIMIT, "raise `max_steps`"),
        ],
    )
    def test_end_names_the_reason_of_declines_and_the_remedy(self, reason, words):
        current = engine("a", "b", devices=2, wait_s=5.0, max_failed_rounds=9)
        all_decline(current, 0.0, reason)
        end = end_of(current.handle(TimePassed(), 5.0))
        assert end.reason is Stopped.FAILED
        assert "2 of those that are there cannot take part, as a: not today" in end.detail
        assert words in end.detail
        assert current.records[-1].decline_reasons == {reason: 2}

    def test_run_without_rounds_left_ends_at_once(self):
        done = Engine(run_spec(rounds=1), records=[RoundRecord(1, "aggregated", 1, 1, 0, 1)], jitter=random.Random(1))
        end = end_of(done.handle(RunStarted(), 0.0))
        assert end.reason is Stopped.MAX_ROUNDS
        assert "the run is complete" in end.detail

    @pytest.mark.parametrize("published", [False, True])
    def test_an_interrupt_leaves_no_record_of_the_open_round(self, published):
        """A resume plays it again under the same number."""
        current = engine("a")
        if published:
            current.handle(ModelPublished(model()), 0.0)
        effects = current.handle(Interrupted(), 1.0)
        assert [effect for effect in effects if isinstance(effect, SaveRecord)] == []
        assert (current.records, current.last_round) == ([], 0)
        again = Engine(replace(current.spec, epoch=2), records=current.records, jitter=random.Random(1))
        again.handle(RunStarted(), 0.0)
        assert opened(again.handle(DevicePresence("a", there()), 0.0)) == [1]


class TestInterval:
    """The pace of a run: `round_interval_s`."""

    def test_next_round_begins_an_interval_after_the_last(self):
        current = engine("a", round_interval_s=100.0, rounds=2)
        assert play(current, "a", 10.0) == []
        assert (current.next_deadline(), current.pause_s(40.0)) == (100.0, 60.0)
        assert opened(current.handle(TimePassed(), 99.9)) == []
        assert opened(current.handle(TimePassed(), 100.0)) == [2]
        assert current.pause_s(100.0) == 0.0

    def test_committed_states_the_rest_of_the_interval(self):
        current = engine("a", round_interval_s=100.0)
        heard: list[Body] = []
        play(current, "a", 10.0, heard)
        assert heard == [Committed(update().digest, 90.0)]

    def test_round_longer_than_the_interval_is_followed_at_once(self):
        current = engine("a", round_interval_s=100.0, rounds=2)
        assert play(current, "a", 150.0) == [2]

    def test_interval_of_a_resumed_round_counts_from_its_first_beginning(self):
        start = RoundStart(RoundJournal(1, 1, ("a",), model().digest, spent_s=30.0))
        current = Engine(run_spec(round_interval_s=100.0, rounds=2), unfinished=start, jitter=random.Random(1))
        current.handle(RunStarted(), 0.0)
        current.handle(DevicePresence("a", there()), 0.0)
        assert play(current, "a", 10.0) == []
        assert current.next_deadline() == 70.0


def play(current: Engine, device: str, now: float, heard: list[Body] | None = None) -> list[int]:
    """The open round, in which one device reports at `now`; numbers of the rounds that begin then."""
    current.handle(ModelPublished(model()), 0.0)
    effects = engines.report_of(current, device, now)
    if heard is not None:
        heard += [body for _, body in told(effects)]
    return opened(current.handle(Aggregated(), now))
