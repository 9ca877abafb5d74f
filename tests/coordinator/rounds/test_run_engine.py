"""The run engine: start and end of rounds, stale messages, and the end of the run."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.failed_rounds import RETRY_S
from fedpatch.coordinator.rounds.participant_transitions import Phase, State
from fedpatch.coordinator.rounds.round_journal import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_phases import RETURN_S
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CountEvent,
    Effect,
    EndRun,
    PublishModel,
    RetractModel,
    SaveJournal,
    SaveRecord,
    SendMessage,
)
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DevicePresence,
    Event,
    HoldsChanged,
    Interrupted,
    LinkChanged,
    ModelPublished,
    RunStarted,
    StopRequested,
    TimePassed,
    UpdateRejected,
)
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Cancel,
    Committed,
    Decline,
    Failed,
    Grant,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
)
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, JobPhase, RefuseReason
from tests.coordinator.engines import (
    BLOB,
    DIGEST,
    aggregating,
    asking,
    current,
    end_of,
    engine,
    join,
    kinds,
    report_of,
    send,
)
from tests.support.specs import counted, gone, model, refusal, run_spec, sent, there, update


class TestBeginning:
    def test_first_round_waits_for_the_expected_devices(self):
        made = engine(devices=2, wait_s=60.0)
        assert (made.next_deadline(), made.required_devices()) == (60.0, 2)
        assert made.handle(DevicePresence("a", there()), 1.0) == []
        assert made.handle(DevicePresence("b", there()), 2.0) == [PublishModel(1)]
        assert (made.last_round, made.next_deadline()) == (1, None)
        assert sorted({device for device, _ in sent(made.handle(ModelPublished(model()), 3.0))}) == ["a", "b"]

    def test_run_without_enough_devices_fails_after_wait_s(self):
        made = engine(devices=2, wait_s=60.0)
        made.handle(DevicePresence("a", there()), 1.0)
        assert made.handle(TimePassed(), 59.9) == []
        [finish] = made.handle(TimePassed(), 60.0)
        assert isinstance(finish, EndRun)
        assert (finish.reason, made.stopped, made.next_deadline()) == (Stopped.FAILED, Stopped.FAILED, None)
        assert finish.detail.startswith("1 of 2 devices came within 60 s; are the agents running")
        assert "--wait-s" in finish.detail
        assert made.handle(TimePassed(), 61.0) + made.handle(DevicePresence("b", there()), 62.0) == []

    def test_time_limit_ends_the_wait_for_devices(self):
        """This also holds if floating point rounds the deadline."""
        made = engine(devices=1, wait_s=60.0, time_limit_s=0.3, now=1_000_000.1)
        deadline = made.next_deadline()
        assert deadline is not None
        [finish] = made.handle(TimePassed(), deadline)
        assert isinstance(finish, EndRun)
        assert finish.reason is Stopped.DEADLINE
        assert finish.detail.startswith("no round began: 0 of 1 devices came within 0.3 s; are the agents running")

    def test_round_that_ends_with_a_number_of_updates_begins_with_as_many_devices(self):
        made = engine(devices=1, min_cohort=1, quorum_updates=3, wait_s=60.0)
        join(made, "ab")
        assert (made.open, made.required_devices()) == (None, 3)
        assert made.handle(DevicePresence("c", there()), 1.0) == [PublishModel(1)]

    def test_round_has_no_traffic_before_its_model_is_published(self):
        made = engine(devices=1)
        join(made, "a")
        assert current(made).traffic() == RoundTraffic(0, 0)
        made.handle(ModelPublished(model()), 1.0)
        send(made, "a", Progress(JobPhase.TRAINING, 1, 10), 2.0)
        assert current(made).traffic() == RoundTraffic(model().size_bytes, 0, 1)

    def test_device_that_trains_holds_the_model_of_its_round(self):
        """So the next round names only the later deltas to it."""
        made = asking("ab", encoding="delta-int8")
        send(made, "a", Accept(10))
        assert made.fleet.version("a") == ""
        send(made, "a", Progress(JobPhase.TRAINING, 1, 10))
        assert [made.fleet.version(device) for device in "ab"] == [model().digest, ""]

    def test_later_round_needs_only_a_cohort(self):
        made = asking("ab", quorum=0.5, wait_s=60.0, rejoin_s=30.0)
        send(made, "b", Failed(FailReason.TRAINING), 1.0)
        report_of(made, "a")
        made.handle(DevicePresence("b", gone()), 6.0)
        assert made.handle(Aggregated(), 7.0)[-1] == PublishModel(2)
        assert made.required_devices() == 1
        made.handle(ModelPublished(model()), 7.0)
        send(made, "a", Accept(10), 7.5, 2)
        made.handle(DevicePresence("a", gone()), 8.0)
        made.handle(TimePassed(), 38.0)
        assert made.records[-1].failures == {"lost": 1}
        assert made.open is None

    def test_waiting_engine_has_no_deadline_in_the_past(self):
        made = asking("a", wait_s=60.0, max_failed_rounds=9)
        made.handle(DevicePresence("a", gone()), 1.0)
        made.handle(TimePassed(), 100.0)
        now = 100.0
        while (deadline := made.next_deadline()) is not None:
            assert deadline > now
            now = deadline
            made.handle(TimePassed(), now)
        assert made.stopped is Stopped.FAILED
        assert now == 160.0

    def test_engine_without_a_broker_has_no_deadline(self):
        made = asking("a", max_failed_rounds=9)
        made.handle(LinkChanged(connected=False), 1.0)
        made.handle(TimePassed(), 100.0)
        made.handle(TimePassed(), 200.0)
        assert made.next_deadline() is None

    def test_resumed_run_continues_the_round_numbers(self):
        before = [RoundRecord(number, "failed", 2, 0, 0, 0, failure="quorum_missed") for number in (1, 2, 3)]
        made = engine(before, epoch=2, devices=2, rounds=5, max_failed_rounds=3)
        assert (made.last_round, made.required_devices(), made.stopped) == (3, 2, None)
        made.handle(DevicePresence("a", there()), 1.0)
        assert made.handle(DevicePresence("b", there()), 1.0) == [PublishModel(4)]

    def test_resumed_run_goes_on_without_missing_devices_if_a_cohort_is_left(self):
        before = [RoundRecord(1, "aggregated", 3, 3, 0, 3)]
        for least, comes in ((2, [PublishModel(2)]), (3, [])):
            made = engine(before, epoch=2, devices=3, rounds=5, wait_s=60.0, min_cohort=least)
            for device in "ab":
                assert made.handle(DevicePresence(device, there()), 1.0) == []
            assert [one for one in made.handle(TimePassed(), 60.0) if isinstance(one, PublishModel)] == comes
            assert made.stopped is (None if comes else Stopped.FAILED)

    def test_resumed_run_waits_return_s_for_missing_devices(self):
        before = [RoundRecord(1, "aggregated", 3, 3, 0, 3)]
        made = engine(before, epoch=2, devices=3, rounds=5, wait_s=86_400.0)
        assert made.handle(TimePassed(), 4_000.0) == []
        assert made.next_deadline() == 86_400.0
        assert made.handle(DevicePresence("a", there()), 5_000.0) == []
        assert made.handle(DevicePresence("b", there()), 5_000.0) == [PublishModel(2)]
        made = engine(before, epoch=2, devices=3, rounds=5, wait_s=86_400.0)
        assert made.handle(DevicePresence("a", there()), 1.0) == []
        assert made.handle(DevicePresence("b", there()), 1.0) == []
        assert made.next_deadline() == RETURN_S
        assert made.handle(DevicePresence("b", gone()), 2.0) == []
        assert made.handle(DevicePresence("b", there()), 3.0) == []
        assert made.handle(TimePassed(), RETURN_S) == [PublishModel(2)]

    @pytest.mark.parametrize(
        ("changes", "reason"), [({"rounds": 1}, Stopped.MAX_ROUNDS), ({"target_ua": 0.5}, Stopped.TARGET_UA)]
    )
    def test_resumed_run_that_was_over_ends_at_once(self, changes, reason):
        done = RoundRecord(1, "aggregated", 2, 2, 0, 2, user_accuracy=0.5)
        assert engine([done], **changes).stopped is reason


class TestRound:
    def test_last_report_leads_to_aggregate_record_and_next_round(self):
        made = asking("ab")
        assert counted(report_of(made, "b")) == [("b", "reported", "")]
        assert report_of(made, "a", 6.0)[-1] == AggregateUpdates(1, ("a", "b"))
        assert made.handle(TimePassed(), 7.0) == []
        assert made.eta_s(9.0) is None
        assert kinds(made.handle(Aggregated(), 9.0)) == [RetractModel, SaveRecord, PublishModel]
        assert made.eta_s(10.0) == 5.0  # the last quorum was reached after 6 s
        [record] = made.records
        assert (record.outcome, record.reported, record.phase_seconds.aggregate) == ("aggregated", 2, 3.0)

    def test_failed_round_cancels_late_devices_and_retracts_the_model(self):
        made = asking("ab")
        send(made, "a", Accept(10))
        send(made, "b", Accept(10))
        effects = made.handle(TimePassed(), 300.0)
        assert kinds(effects)[-2:] == [RetractModel, SaveRecord]
        assert sent(effects) == [("a", Cancel("late")), ("b", Cancel("late"))]
        assert made.records[0].failure == "quorum_missed"

    def test_rejected_update_is_refused_and_the_round_fails(self):
        made = asking("a", rounds=1)
        send(made, "a", Accept(10))
        effects = made.handle(UpdateRejected(made.last_round, "a", DIGEST, RefuseReason.NOT_FINITE, "NaN"), 5.0)
        assert sent(effects) == [("a", Refused(DIGEST, RefuseReason.NOT_FINITE, "NaN"))]
        assert CountEvent("a", "refused", RefuseReason.NOT_FINITE, "NaN") in effects
        assert (made.records[0].refused, made.stopped) == ({"not_finite": 1}, Stopped.MAX_ROUNDS)

    def test_free_slot_is_granted_to_a_waiting_device(self):
        made = asking("abc", upload_slots=1, quorum=0.5)
        for device in "abc":
            send(made, device, Offer(update(device.encode() * 350)))
        [(device, body)] = sent(send(made, "a", Failed(FailReason.TRAINING), 2.0))
        assert (device, type(body)) == ("b", Grant)

    def test_aggregated_before_the_reports_raises(self):
        made = asking("a")
        with pytest.raises(IllegalTransition):
            made.handle(Aggregated(), 1.0)
        assert current(made).round.phase is Phase.RECRUITING


class TestStaleMessages:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"epoch": 1, "number": 9}, RefuseReason.STALE_EPOCH),
            ({"epoch": 3}, RefuseReason.LATE),
            ({"run": "run-0"}, RefuseReason.LATE),
            ({"number": 9}, RefuseReason.LATE),
        ],
        ids=str,
    )
    def test_stale_offer_is_refused_and_stale_work_cancelled(self, changes, reason):
        made = asking("ab", epoch=2)
        changes = {"epoch": 2} | changes
        assert refusal(send(made, "a", Offer(update()), **changes)).reason is reason
        assert sent(send(made, "a", Progress(JobPhase.TRAINING, 1, 2), **changes)) == [("a", Cancel(reason))]

    def test_offer_for_the_open_round_of_a_resumable_run_is_put_off(self):
        made = asking("a", resumable={"run-0": 7})
        [(_, body)] = sent(send(made, "a", Offer(update()), number=7, run="run-0"))
        assert isinstance(body, RetryAfter)
        assert refusal(send(made, "a", Offer(update()), number=8, run="run-0")).reason is RefuseReason.LATE

    def test_offer_of_a_device_that_was_not_invited_is_refused(self):
        made = asking("ab")
        made.handle(DevicePresence("z", there()), 1.0)
        assert refusal(send(made, "z", Offer(update()))).reason is RefuseReason.NOT_INVITED
        assert made.handle(ChunkReceived("z", cut(BLOB, update(BLOB), 0)), 1.0) == []

    def test_late_devices_are_cancelled_once(self):
        assert sent(aggregating().handle(Aggregated(), 6.0)) == []

    def test_messages_while_aggregating_are_late_unless_committed(self):
        made = aggregating()
        assert sent(send(made, "a", Offer(update(BLOB)), 6.0)) == [("a", Committed(DIGEST))]
        assert sent(send(made, "b", Need(model().digest, b"\x01"), 6.0)) == [("b", Cancel("late"))]
        effects = send(made, "a", Progress(JobPhase.TRAINING, 1, 2), 6.0)
        assert (sent(effects), counted(effects)) == ([("a", Cancel("late"))], [("a", "late", "late")])

    def test_offers_after_the_run_are_committed_again_or_refused(self):
        made = asking("a", rounds=1)
        report_of(made, "a")
        made.handle(Aggregated(), 9.0)
        assert made.stopped is Stopped.MAX_ROUNDS
        assert sent(send(made, "a", Offer(update(BLOB)), 10.0)) == [("a", Committed(DIGEST))]
        refusal(send(made, "a", Offer(update(b"other")), 10.0))
        assert made.handle(ChunkReceived("a", cut(BLOB, update(BLOB), 0)), 10.0) == []

    def test_last_will_of_an_earlier_connection_is_ignored(self):
        made = asking("ab")
        made.handle(DevicePresence("a", there("b2")), 1.0)
        assert made.handle(DevicePresence("a", gone("b1")), 2.0) == []
        assert made.fleet.eligible() == ["a", "b"]


class TestEnd:
    def test_interrupt_ends_the_run_in_every_phase_once(self):
        assert engine().handle(Interrupted(), 1.0) == [EndRun(Stopped.INTERRUPTED, "")]
        selecting = engine()
        selecting.handle(DevicePresence("a", there()), 1.0)
        assert sent(selecting.handle(Interrupted(), 2.0)) == []
        recruiting = asking("ab")
        assert sent(recruiting.handle(Interrupted(), 2.0)) == [("a", Cancel("late")), ("b", Cancel("late"))]
        assert recruiting.handle(Interrupted(), 3.0) == []
        assert aggregating().handle(Interrupted(), 6.0)[-1] == EndRun(Stopped.INTERRUPTED, "")

    def test_requested_stop_ends_the_run_after_its_open_round(self):
        made = asking("a", rounds=5)
        assert made.handle(StopRequested(), 1.0) == []
        report_of(made, "a")
        effects = made.handle(Aggregated(), 9.0)
        assert [one.record.outcome for one in effects if isinstance(one, SaveRecord)] == ["aggregated"]
        assert effects[-1] == EndRun(Stopped.INTERRUPTED, "")

    def test_requested_stop_between_rounds_ends_the_run_at_once(self):
        assert engine().handle(StopRequested(), 1.0) == [EndRun(Stopped.INTERRUPTED, "")]

    def test_requested_stop_leaves_a_run_that_is_complete_complete(self):
        made = asking("a", rounds=1)
        made.handle(StopRequested(), 1.0)
        report_of(made, "a")
        assert made.handle(Aggregated(), 9.0)[-1] == EndRun(Stopped.MAX_ROUNDS, "")


def waiting_engine(*devices: str, **changes: Any) -> Engine:
    """Return an engine that was started at second 0, with these devices online."""
    started = engine(**changes)
    join(started, devices)
    return started


def opened(effects: list[Effect]) -> list[int]:
    """Return the numbers of the rounds that begin."""
    return [effect.round for effect in effects if isinstance(effect, PublishModel)]


def all_decline(made: Engine, now: float, reason: DeclineReason = DeclineReason.UNWILLING) -> list[Effect]:
    """Let every device decline a round; return the effects."""
    made.handle(ModelPublished(model()), now)
    number = made.last_round
    return [
        effect
        for device in sorted(made.fleet.members)
        for effect in send(made, device, Decline(reason, "not today"), now, number)
    ]


class Handler:
    """Records effects; the model is published at once."""

    def __init__(self) -> None:
        self.ran: list[Effect] = []

    def run_effect(self, effect: Effect) -> list[Event]:
        """Run one effect (EffectHandler)."""
        self.ran.append(effect)
        return [ModelPublished(model())] if isinstance(effect, PublishModel) else []


def test_run_effects_runs_the_effects_that_follow_from_a_completion():
    made, handler = waiting_engine("a"), Handler()
    drive_engine(made, [PublishModel(1), RetractModel()], handler, lambda: 1.0)
    assert kinds(handler.ran) == [PublishModel, RetractModel, SaveJournal, CountEvent, SendMessage]


@pytest.mark.parametrize(("hold", "expelled"), [("drained", False), ("quarantined", True)])
def test_quarantine_expels_a_device_and_drain_lets_it_finish(hold, expelled):
    made = asking("ab", quorum=0.5)
    made.handle(HoldsChanged({"a": hold}), 1.0)
    assert (current(made).round.participants["a"].state is State.FAILED) == expelled


def test_run_fails_after_max_failed_rounds_that_follow_a_successful_one():
    made = waiting_engine("a", max_failed_rounds=2, rounds=9)
    made.handle(ModelPublished(model()), 0.0)
    report_of(made, "a")
    made.handle(Aggregated(), 6.0)
    now = 6.0
    for _ in range(2):
        assert made.stopped is None
        all_decline(made, now)
        now += 1_000.0
        made.handle(TimePassed(), now)
    assert made.stopped is Stopped.FAILED


class TestUnwilling:
    """Online devices that decline because of their owners' preferences."""

    def test_device_is_not_invited_before_its_retry_time(self):
        made = waiting_engine("a", "b", rounds=9, devices=2, quorum=0.5)
        made.handle(ModelPublished(model()), 0.0)
        for device, retry_s in (("a", 0.0), ("b", 50.0)):
            send(made, device, Decline(DeclineReason.UNWILLING, "", Condition.TOO_HOT, retry_s), 0.0)
        deadline = made.next_deadline()
        assert deadline is not None
        assert opened(made.handle(TimePassed(), deadline)) == [2]
        invited = made.handle(ModelPublished(model()), deadline)
        assert [device for device, _ in sent(invited)] == ["a"]
        assert made.records[0].decline_reasons == {"too_hot": 2}

    def test_round_waits_for_the_first_device_whose_rest_ends(self):
        made = waiting_engine("a", rounds=9, max_failed_rounds=2)
        made.handle(ModelPublished(model()), 0.0)
        send(made, "a", Decline(DeclineReason.UNWILLING, "", Condition.QUIET_HOURS, 40.0), 0.0)
        now = 0.0
        while made.open is None:
            deadline = made.next_deadline()
            assert deadline is not None and deadline > now
            now = deadline
            made.handle(TimePassed(), now)
        assert now == 40.0
        assert len(made.records) == 1

    def test_end_names_the_conditions_of_unwilling_devices(self):
        made = waiting_engine(wait_s=30.0)
        made.handle(DevicePresence("a", replace(there(), unwilling=Condition.NOT_CHARGING)), 0.0)
        end = end_of(made.handle(TimePassed(), 30.0))
        assert "unwilling: not_charging 1" in end.detail


class TestPause:
    """The pause between a failed round and the next one."""

    def test_pause_doubles_with_each_failure(self):
        made = waiting_engine("a", max_failed_rounds=4, rounds=9)
        now, pauses = 0.0, []
        for number in (1, 2, 3):
            assert opened(all_decline(made, now)) == []
            deadline = made.next_deadline()
            assert deadline is not None
            assert opened(made.handle(TimePassed(), deadline - 0.01)) == []
            assert opened(made.handle(TimePassed(), deadline)) == [number + 1]
            pauses.append(deadline - now)
            now = deadline
        assert pauses == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]

    def test_pause_is_at_most_wait_s(self):
        made = waiting_engine("a", wait_s=0.5)
        all_decline(made, 10.0)
        assert made.next_deadline() == 10.5

    @pytest.mark.medium
    def test_pause_after_thousands_of_failures_is_a_minute(self):
        made = waiting_engine("a", rounds=9999, max_failed_rounds=9999)
        now = 0.0
        for _ in range(2000):
            all_decline(made, now)
            now = made.next_deadline() or now
            made.handle(TimePassed(), now)
        all_decline(made, now)
        assert made.next_deadline() == now + 60.0

    def test_run_ends_after_max_failed_rounds(self):
        made = waiting_engine("a", max_failed_rounds=2, recruit_deadline_s=RETRY_S)
        all_decline(made, 0.0)
        made.handle(TimePassed(), RETRY_S)
        end = end_of(all_decline(made, RETRY_S))
        detail = "2 rounds in a row failed, the last one: too_few_accepted, with 0 of the 1 updates needed"
        assert (end.reason, end.detail) == (Stopped.FAILED, detail)

    def test_failures_within_the_recruit_deadline_count_as_one(self):
        made = waiting_engine("a", max_failed_rounds=2, rounds=99, recruit_deadline_s=10.0)
        now = 0.0
        while all_decline(made, now) and made.stopped is None:
            now = made.next_deadline() or now
            made.handle(TimePassed(), now)
        assert made.stopped is Stopped.FAILED
        assert now == 14.0  # rounds failed at 0, 2, 6 and 14 seconds

    def test_successful_round_is_followed_at_once(self):
        made = waiting_engine("a")
        assert made.handle(TimePassed(), 0.0) == []  # the model is not published yet
        assert play(made, "a", 2.0) == [2]


class TestLink:
    """The effect of the coordinator's own connection on rounds."""

    def test_no_round_begins_without_a_broker(self):
        made = waiting_engine()
        made.handle(LinkChanged(connected=False), 0.0)
        assert opened(made.handle(DevicePresence("a", there()), 1.0)) == []
        assert opened(made.handle(LinkChanged(connected=True), 500.0)) == [1]

    def test_wait_s_begins_when_the_broker_is_there(self):
        made = waiting_engine(wait_s=60.0)
        made.handle(LinkChanged(connected=False), 10.0)
        made.handle(TimePassed(), 500.0)
        made.handle(LinkChanged(connected=True), 500.0)
        made.handle(TimePassed(), 559.0)
        assert made.stopped is None
        end_of(made.handle(TimePassed(), 560.0))


class TestLastWords:
    """The detail of the end of a run."""

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
        made = waiting_engine("a", "b", devices=2, wait_s=5.0, max_failed_rounds=9)
        all_decline(made, 0.0, reason)
        end = end_of(made.handle(TimePassed(), 5.0))
        assert end.reason is Stopped.FAILED
        assert "2 of those that are there cannot take part, as a: not today" in end.detail
        assert words in end.detail
        assert made.records[-1].decline_reasons == {reason: 2}

    def test_run_without_rounds_left_ends_at_once(self):
        done = Engine(run_spec(rounds=1), records=[RoundRecord(1, "aggregated", 1, 1, 0, 1)], jitter=random.Random(1))
        end = end_of(done.handle(RunStarted(), 0.0))
        assert end.reason is Stopped.MAX_ROUNDS
        assert "the run is complete" in end.detail

    @pytest.mark.parametrize("published", [False, True])
    def test_interrupt_leaves_no_record_of_the_open_round(self, published):
        """A resume runs this round again with the same number."""
        made = waiting_engine("a")
        if published:
            made.handle(ModelPublished(model()), 0.0)
        effects = made.handle(Interrupted(), 1.0)
        assert [effect for effect in effects if isinstance(effect, SaveRecord)] == []
        assert (made.records, made.last_round) == ([], 0)
        again = Engine(replace(made.spec, epoch=2), records=made.records, jitter=random.Random(1))
        again.handle(RunStarted(), 0.0)
        assert opened(again.handle(DevicePresence("a", there()), 0.0)) == [1]


class TestInterval:
    """The pace of a run: `round_interval_s`."""

    def test_next_round_begins_an_interval_after_the_last(self):
        made = waiting_engine("a", round_interval_s=100.0, rounds=2)
        assert play(made, "a", 10.0) == []
        assert (made.next_deadline(), made.pause_s(40.0)) == (100.0, 60.0)
        assert opened(made.handle(TimePassed(), 99.9)) == []
        assert opened(made.handle(TimePassed(), 100.0)) == [2]
        assert made.pause_s(100.0) == 0.0

    def test_committed_states_the_rest_of_the_interval(self):
        made = waiting_engine("a", round_interval_s=100.0)
        received: list[Body] = []
        play(made, "a", 10.0, received)
        assert received == [Committed(update().digest, 90.0)]

    def test_round_longer_than_the_interval_is_followed_at_once(self):
        made = waiting_engine("a", round_interval_s=100.0, rounds=2)
        assert play(made, "a", 150.0) == [2]

    def test_run_waits_for_devices_from_the_end_of_the_interval(self):
        """Devices that are away in between, for example by day, do not end the run."""
        made = waiting_engine("a", round_interval_s=1000.0, rounds=2, wait_s=120.0)
        play(made, "a", 10.0)
        made.handle(DevicePresence("a", gone()), 20.0)
        assert made.handle(TimePassed(), 500.0) == []
        assert (made.handle(TimePassed(), 1000.0), made.next_deadline()) == ([], 1120.0)
        assert opened(made.handle(DevicePresence("a", there()), 1119.0)) == [2]

    def test_run_fails_without_devices_wait_s_after_the_end_of_the_interval(self):
        made = waiting_engine("a", round_interval_s=1000.0, rounds=2, wait_s=120.0)
        play(made, "a", 10.0)
        made.handle(DevicePresence("a", gone()), 20.0)
        assert made.handle(TimePassed(), 1119.0) == []
        assert end_of(made.handle(TimePassed(), 1120.0)).reason is Stopped.FAILED

    def test_interval_of_a_resumed_round_counts_from_its_first_beginning(self):
        start = RoundStart(RoundJournal(1, 1, ("a",), model().digest, spent_s=30.0))
        made = Engine(run_spec(round_interval_s=100.0, rounds=2), unfinished=start, jitter=random.Random(1))
        made.handle(RunStarted(), 0.0)
        made.handle(DevicePresence("a", there()), 0.0)
        assert play(made, "a", 10.0) == []
        assert made.next_deadline() == 70.0


def play(made: Engine, device: str, now: float, received: list[Body] | None = None) -> list[int]:
    """Complete the open round with a report at `now`; return the numbers of the rounds that begin then."""
    made.handle(ModelPublished(model()), 0.0)
    effects = report_of(made, device, now)
    if received is not None:
        received += [body for _, body in sent(effects)]
    return opened(made.handle(Aggregated(), now))
