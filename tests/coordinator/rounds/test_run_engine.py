"""When an engine opens a round, when it waits, and what it says at the end."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.participant_transitions import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.run_effects import Effect, EndRun, PublishModel, SaveRecord
from fedpatch.coordinator.rounds.run_engine import RETRY_S, Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    Interrupted,
    LinkChanged,
    ModelPublished,
    RunStarted,
    TimePassed,
    UpdateStored,
)
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.rounds.run_spec import Stopped
from fedpatch.shared.wire.chunked_transfer import cut
from fedpatch.shared.wire.messages import Accept, Body, Committed, Decline, Offer
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason
from tests.support.specs import model, report, run_spec, said, there, told, update


def engine(*devices: str, records: tuple[RoundRecord, ...] = (), **changes: Any) -> Engine:
    """An engine that was started at second 0, and knows these devices."""
    started = Engine(run_spec(**changes), records=records, jitter=random.Random(1))
    started.handle(RunStarted(), 0.0)
    for device in devices:
        started.handle(DevicePresence(device, there()), 0.0)
    return started


def opened(effects: list[Effect]) -> list[int]:
    """Numbers of the rounds that begin."""
    return [effect.round for effect in effects if isinstance(effect, PublishModel)]


def finish(effects: list[Effect]) -> EndRun | None:
    """The end of the run, if it came."""
    return next((effect for effect in effects if isinstance(effect, EndRun)), None)


def all_decline(current: Engine, now: float, reason: DeclineReason = DeclineReason.UNWILLING) -> list[Effect]:
    """A round in which every device says no."""
    current.handle(ModelPublished(model()), now)
    assert current.open is not None
    number = current.open.round.number
    return [
        effect
        for device in sorted(current.fleet.members)
        for effect in current.handle(DeviceMessage(device, said(Decline(reason, "not today"), number)), now)
    ]


class TestUnwilling:
    """Devices that are there, but whose owners' preferences come first."""

    def test_nobody_is_asked_before_the_time_he_named(self):
        """Not in the next round either, which begins without him; also where he spoke when the round was lost."""
        current = engine("a", "b", rounds=9, devices=2, quorum=0.5)
        current.handle(ModelPublished(model()), 0.0)
        for device, retry_s in (("a", 0.0), ("b", 50.0)):
            decline = Decline(DeclineReason.UNWILLING, "", Condition.TOO_HOT, retry_s)
            current.handle(DeviceMessage(device, said(decline)), 0.0)
        deadline = current.next_deadline()
        assert deadline is not None
        assert opened(current.handle(TimePassed(), deadline)) == [2]
        invited = current.handle(ModelPublished(model()), deadline)
        assert [device for device, _ in told(invited)] == ["a"]
        assert current.records[0].decline_reasons == {"too_hot": 2}

    def test_when_all_rest_the_round_waits_for_the_first(self):
        """It wakes up by itself, and does not fail round after round meanwhile."""
        current = engine("a", rounds=9, max_failed_rounds=2)
        current.handle(ModelPublished(model()), 0.0)
        current.handle(DeviceMessage("a", said(Decline(DeclineReason.UNWILLING, "", Condition.QUIET_HOURS, 40.0))), 0.0)
        now = 0.0
        while current.open is None:
            deadline = current.next_deadline()
            assert deadline is not None and deadline > now
            now = deadline
            current.handle(TimePassed(), now)
        assert now == 40.0
        assert len(current.records) == 1

    def test_who_waits_in_vain_is_told_why(self):
        """The devices are there: what is missing is power."""
        current = engine(wait_s=30.0)
        current.handle(DevicePresence("a", replace(there(), unwilling=Condition.NOT_CHARGING)), 0.0)
        end = finish(current.handle(TimePassed(), 30.0))
        assert end is not None
        assert "unwilling: not_charging 1" in end.detail


class TestPause:
    """Between a round that failed and the next."""

    def test_grows_with_each_failure(self):
        """Owners change their minds, links come back: a run of days does not die within a second."""
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

    def test_is_never_longer_than_devices_are_waited_for(self):
        """So `wait_s` bounds every pause of a run."""
        current = engine("a", wait_s=0.5)
        all_decline(current, 10.0)
        assert current.next_deadline() == 10.5

    def test_can_follow_thousands_of_failures(self):
        """Who sets a high limit wants a run that waits for days."""
        current = engine("a", rounds=9999, max_failed_rounds=9999)
        now = 0.0
        for _ in range(2000):
            all_decline(current, now)
            now = current.next_deadline() or now
            current.handle(TimePassed(), now)
        all_decline(current, now)
        assert current.next_deadline() == now + 60.0

    def test_ends_the_run_after_too_many(self):
        """The last word names the reason."""
        current = engine("a", max_failed_rounds=2, recruit_deadline_s=RETRY_S)
        all_decline(current, 0.0)
        current.handle(TimePassed(), RETRY_S)
        end = finish(all_decline(current, RETRY_S))
        assert end is not None
        detail = "2 rounds in a row failed, the last one: too_few_accepted, with 0 of the 1 updates needed"
        assert (end.reason, end.detail) == (Stopped.FAILED, detail)

    def test_failures_within_the_recruit_deadline_count_as_one(self):
        """Rounds that fail within a moment do not use up `max_failed_rounds`."""
        current = engine("a", max_failed_rounds=2, rounds=99, recruit_deadline_s=10.0)
        now, ended = 0.0, None
        while ended is None:
            ended = finish(all_decline(current, now))
            if ended is None:
                now = current.next_deadline() or now
                current.handle(TimePassed(), now)
        assert ended.reason is Stopped.FAILED
        assert now == 14.0  # at 0, 2, 6 and 14 seconds

    def test_does_not_follow_a_round_that_succeeded(self):
        """A healthy run does not wait for anything."""
        current = engine("a")
        current.handle(TimePassed(), 0.0)
        current.handle(ModelPublished(model()), 0.0)
        current.handle(DeviceMessage("a", said(Accept(10))), 1.0)
        current.handle(DeviceMessage("a", said(Offer(update()))), 2.0)
        blob = b"u" * 350
        for index in range(update().chunk_count):
            current.handle(ChunkReceived("a", cut(blob, update(), index)), 2.0)
        current.handle(UpdateStored(current.last_round, "a", update().digest, report()), 2.0)
        assert opened(current.handle(Aggregated(), 2.0)) == [2]


class TestLink:
    """What the coordinator's own connection means for rounds."""

    def test_no_round_is_opened_without_a_broker(self):
        """Nobody could hear of it, and it would count as a failure."""
        current = engine()
        current.handle(LinkChanged(connected=False), 0.0)
        assert opened(current.handle(DevicePresence("a", there()), 1.0)) == []
        assert opened(current.handle(LinkChanged(connected=True), 500.0)) == [1]

    def test_time_without_a_broker_is_not_held_against_the_devices(self):
        """They are waited for from the moment they can come."""
        current = engine(wait_s=60.0)
        current.handle(LinkChanged(connected=False), 10.0)
        assert finish(current.handle(TimePassed(), 500.0)) is None
        current.handle(LinkChanged(connected=True), 500.0)
        assert finish(current.handle(TimePassed(), 559.0)) is None
        assert finish(current.handle(TimePassed(), 560.0)) is not None


class TestEnd:
    """What is said of a run that cannot go on, or need not."""

    def test_names_what_bars_the_devices(self):
        """Agents that run but cannot take part are not to be looked for."""
        current = engine("a", "b", devices=2, wait_s=5.0, max_failed_rounds=9)
        all_decline(current, 0.0, DeclineReason.SCHEMA_MISMATCH)
        end = finish(current.handle(TimePassed(), 5.0))
        assert end is not None
        assert "0 of 2 devices" in end.detail
        assert "2 of those that are there cannot take part, as a: not today" in end.detail

    @pytest.mark.parametrize(
        ("reason", "remedy"),
        [
            (DeclineReason.PRIVATE_POLICY, "set `private` of their agents"),
            (DeclineReason.PLAN_LIMIT, "raise `max_steps`"),
        ],
    )
    def test_owners_limits_that_stop_every_device_are_named_with_what_to_do(self, reason, remedy):
        """The end of the run gives the word, how many declined with it, and the settings of both sides."""
        current = engine("a", "b", devices=2, wait_s=5.0, max_failed_rounds=9)
        all_decline(current, 0.0, reason)
        end = finish(current.handle(TimePassed(), 5.0))
        assert end is not None
        assert end.reason is Stopped.FAILED
        assert f"2 declined with {reason}: " in end.detail
        assert remedy in end.detail
        assert current.records[-1].decline_reasons == {reason: 2}

    def test_a_run_without_anything_left_says_so_at_once(self):
        """It does not wait for devices that it would not ask."""
        done = Engine(run_spec(rounds=1), records=[RoundRecord(1, "aggregated", 1, 1, 0, 1)], jitter=random.Random(1))
        end = finish(done.handle(RunStarted(), 0.0))
        assert end is not None
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

    def test_keeps_rounds_apart(self):
        """The next one begins that long after the beginning of the last; until then a person sees how long."""
        current = engine("a", round_interval_s=100.0, rounds=2)
        assert play(current, "a", 10.0) == []
        assert (current.next_deadline(), current.pause_s(40.0)) == (100.0, 60.0)
        assert opened(current.handle(TimePassed(), 99.9)) == []
        assert opened(current.handle(TimePassed(), 100.0)) == [2]
        assert current.pause_s(100.0) == 0.0

    def test_tells_devices_how_long_they_may_rest(self):
        """What is left of it when their update is committed."""
        current = engine("a", round_interval_s=100.0)
        heard: list[Body] = []
        play(current, "a", 10.0, heard)
        assert heard == [Committed(update().digest, 90.0)]

    def test_delays_no_round_that_took_longer(self):
        """It is no pause between rounds."""
        current = engine("a", round_interval_s=100.0, rounds=2)
        assert play(current, "a", 150.0) == [2]

    def test_is_counted_from_the_first_beginning_of_a_round_that_was_taken_up(self):
        """A crash does not slow a fleet down."""
        ledger = RoundJournal(1, 1, ("a",), model().digest, spent_s=30.0)
        current = Engine(
            run_spec(round_interval_s=100.0, rounds=2), unfinished=RoundStart(ledger), jitter=random.Random(1)
        )
        current.handle(RunStarted(), 0.0)
        current.handle(DevicePresence("a", there()), 0.0)
        assert play(current, "a", 10.0) == []
        assert current.next_deadline() == 70.0


def play(current: Engine, device: str, now: float, heard: list[Body] | None = None) -> list[int]:
    """The open round, in which one device reports at `now`; numbers of the rounds that begin then."""
    current.handle(ModelPublished(model()), 0.0)
    number, manifest = current.last_round, update()
    current.handle(DeviceMessage(device, said(Accept(10), number)), now)
    current.handle(DeviceMessage(device, said(Offer(manifest), number)), now)
    for index in range(manifest.chunk_count):
        current.handle(ChunkReceived(device, cut(b"u" * 350, manifest, index)), now)
    effects = current.handle(UpdateStored(current.last_round, device, manifest.digest, report()), now)
    if heard is not None:
        heard += [body for _, body in told(effects)]
    return opened(current.handle(Aggregated(), now))
