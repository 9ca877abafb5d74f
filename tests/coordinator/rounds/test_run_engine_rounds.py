"""The run: when a round begins, what is current, what is stale, and when it is over."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.participant_transitions import Phase
from fedpatch.coordinator.rounds.round_phases import RETURN_S
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, EndRun, PublishModel, RetractModel, SaveRecord
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DevicePresence,
    Interrupted,
    LinkChanged,
    ModelPublished,
    TimePassed,
    UpdateRejected,
)
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.rounds.run_spec import Stopped
from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.wire.chunked_transfer import cut
from fedpatch.shared.wire.messages import Accept, Cancel, Committed, Failed, Grant, Need, Offer, Progress, Refused
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase, RefuseReason
from tests.coordinator.engines import BLOB, DIGEST, aggregating, asking, current, engine, kinds, report_of, send
from tests.support.specs import counted, gone, model, refusal, there, told, update


class TestBeginning:
    def test_first_round_waits_for_the_expected_devices(self):
        made = engine(devices=2, wait_s=60.0)
        assert (made.next_deadline(), made.required_devices()) == (60.0, 2)
        assert made.handle(DevicePresence("a", there()), 1.0) == []
        assert made.handle(DevicePresence("b", there()), 2.0) == [PublishModel(1)]
        assert (made.last_round, made.next_deadline()) == (1, None)
        assert sorted({device for device, _ in told(made.handle(ModelPublished(model()), 3.0))}) == ["a", "b"]

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
        """Also where floating point rounds the deadline."""
        made = engine(devices=1, wait_s=60.0, time_limit_s=0.3, now=1_000_000.1)
        deadline = made.next_deadline()
        assert deadline is not None
        [finish] = made.handle(TimePassed(), deadline)
        assert isinstance(finish, EndRun)
        assert finish.reason is Stopped.DEADLINE
        assert finish.detail.startswith("no round began: 0 of 1 devices came within 0.3 s; are the agents running")

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
        assert kinds(made.handle(Aggregated(), 9.0)) == [RetractModel, SaveRecord, PublishModel]
        [record] = made.records
        assert (record.outcome, record.reported, record.phase_seconds.aggregate) == ("aggregated", 2, 3.0)

    def test_failed_round_cancels_late_devices_and_retracts_the_model(self):
        made = asking("ab")
        send(made, "a", Accept(10))
        send(made, "b", Accept(10))
        effects = made.handle(TimePassed(), 300.0)
        assert kinds(effects)[-2:] == [RetractModel, SaveRecord]
        assert told(effects) == [("a", Cancel("late")), ("b", Cancel("late"))]
        assert made.records[0].failure == "quorum_missed"

    def test_rejected_update_is_refused_and_the_round_fails(self):
        made = asking("a", rounds=1)
        send(made, "a", Accept(10))
        effects = made.handle(UpdateRejected(made.last_round, "a", DIGEST, RefuseReason.NOT_FINITE, "NaN"), 5.0)
        assert told(effects) == [("a", Refused(DIGEST, RefuseReason.NOT_FINITE, "NaN"))]
        assert (made.records[0].refused, made.stopped) == ({"not_finite": 1}, Stopped.MAX_ROUNDS)

    def test_free_slot_is_granted_to_a_waiting_device(self):
        made = asking("abc", upload_slots=1, quorum=0.5)
        for device in "abc":
            send(made, device, Offer(update(device.encode() * 350)))
        [(device, body)] = told(send(made, "a", Failed(FailReason.TRAINING), 2.0))
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
        assert told(send(made, "a", Progress(JobPhase.TRAINING, 1, 2), **changes)) == [("a", Cancel(reason))]

    def test_offer_of_a_device_that_was_not_invited_is_refused(self):
        made = asking("ab")
        made.handle(DevicePresence("z", there()), 1.0)
        assert refusal(send(made, "z", Offer(update()))).reason is RefuseReason.NOT_INVITED
        assert made.handle(ChunkReceived("z", cut(BLOB, update(BLOB), 0)), 1.0) == []

    def test_messages_while_aggregating_are_late_unless_committed(self):
        made = aggregating()
        assert told(send(made, "a", Offer(update(BLOB)), 6.0)) == [("a", Committed(DIGEST))]
        assert told(send(made, "b", Need(model().digest, b"\x01"), 6.0)) == [("b", Cancel("late"))]

    def test_offers_after_the_run_are_committed_again_or_refused(self):
        made = asking("a", rounds=1)
        report_of(made, "a")
        made.handle(Aggregated(), 9.0)
        assert made.stopped is Stopped.MAX_ROUNDS
        assert told(send(made, "a", Offer(update(BLOB)), 10.0)) == [("a", Committed(DIGEST))]
        refusal(send(made, "a", Offer(update(b"other")), 10.0))
        assert made.handle(ChunkReceived("a", cut(BLOB, update(BLOB), 0)), 10.0) == []

    def test_last_will_of_an_earlier_connection_is_ignored(self):
        made = asking("ab")
        made.handle(DevicePresence("a", there("b2")), 1.0)
        assert made.handle(DevicePresence("a", gone("b1")), 2.0) == []
        assert made.fleet.eligible() == ["a", "b"]


class TestEnd:
    def test_run_ends_at_the_target_accuracy(self):
        made = asking("a", target_ua=0.9, rounds=9)
        report_of(made, "a", accuracy=0.8)
        made.handle(Aggregated(), 6.0)
        made.handle(ModelPublished(model()), 6.0)
        report_of(made, "a", accuracy=0.95)
        assert made.handle(Aggregated(), 9.0)[-1] == EndRun(Stopped.TARGET_UA, "")

    def test_interrupt_ends_the_run_in_every_phase_once(self):
        assert engine().handle(Interrupted(), 1.0) == [EndRun(Stopped.INTERRUPTED, "")]
        selecting = engine()
        selecting.handle(DevicePresence("a", there()), 1.0)
        assert told(selecting.handle(Interrupted(), 2.0)) == []
        recruiting = asking("ab")
        assert told(recruiting.handle(Interrupted(), 2.0)) == [("a", Cancel("late")), ("b", Cancel("late"))]
        assert recruiting.handle(Interrupted(), 3.0) == []
        assert aggregating().handle(Interrupted(), 6.0)[-1] == EndRun(Stopped.INTERRUPTED, "")
