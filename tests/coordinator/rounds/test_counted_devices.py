"""Runs whose devices decline, vanish or offend: the start of rounds, the quorum, and the end of the run."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from fedpatch.coordinator.cohort.quorum import Standing
from fedpatch.coordinator.rounds.held_devices import DRAINED
from fedpatch.coordinator.rounds.round_phases import RETURN_S
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, Effect, EndRun, PublishModel
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    DevicePresence,
    HoldsChanged,
    ModelPublished,
    RunStarted,
    TimePassed,
    UpdateRejected,
)
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.shared.wire.messages import Accept, Decline, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason, RefuseReason
from tests.coordinator.engines import (
    DIGEST,
    accept,
    asking,
    current,
    end_of,
    join,
    leave,
    report_all,
    report_of,
    send,
)
from tests.support.specs import gone, model, run_spec, sent, there

DEFAULTS: dict[str, Any] = {"quorum": 0.8, "rounds": 30, "max_failed_rounds": 3, "wait_s": 120.0}


def fleet_of(devices: str, **changes: Any) -> Engine:
    """Return a run with default terms whose first round has invited these devices, and waits for no others."""
    return asking(devices, **{**DEFAULTS, **changes})


def next_round(made: Engine, now: float) -> list[str]:
    """Let the pause pass; return the devices that the next round invites."""
    if made.open is None:
        made.handle(TimePassed(), now)
    effects = made.handle(ModelPublished(model()), now)
    return sorted(device for device, body in sent(effects) if isinstance(body, WorkRequest))


def all_report(made: Engine, devices: Iterable[str], now: float, accuracy: float = 0.5) -> list[Effect]:
    """Handle a whole round up to its aggregate; return the effects of the aggregate."""
    effects: list[Effect] = []
    for device in devices:
        effects = report_of(made, device, now, accuracy)
    assert AggregateUpdates(made.last_round, tuple(sorted(devices))) in effects, effects
    return made.handle(Aggregated(), now)


def offend(made: Engine, device: str, now: float, reason: RefuseReason = RefuseReason.NOT_FINITE) -> list[Effect]:
    send(made, device, Accept(10), now, made.last_round)
    return made.handle(UpdateRejected(made.last_round, device, DIGEST, reason, "NaN"), now)


def play_to_the_end(made: Engine, now: float, accepting: str = "") -> EndRun:
    """Let time pass until the run ends; in each round the devices in `accepting` accept and no device reports."""
    effects: list[Effect] = []
    while made.stopped is None:
        for device in accepting:
            send(made, device, Accept(10), now, made.last_round)
        now = made.next_deadline() or now
        effects = made.handle(TimePassed(), now)
        if any(isinstance(effect, PublishModel) for effect in effects):
            made.handle(ModelPublished(model()), now)
    return end_of(effects)


class TestDecline:
    def test_one_of_ten_accepts_the_round_fails(self):
        made = fleet_of("abcdefghij", target_ua=0.4)
        for device in "bcdefghij":
            send(made, device, Decline(DeclineReason.UNWILLING))
        send(made, "a", Accept(10))
        [record] = made.records
        assert (record.failure, record.needed, made.stopped) == ("too_few_accepted", 8, None)

    def test_nine_of_ten_are_silent_the_run_fails(self):
        made = fleet_of("abcdefghij", target_ua=0.4)
        assert play_to_the_end(made, 0.0, accepting="a").reason is Stopped.FAILED
        assert {record.outcome for record in made.records} == {"failed"}

    def test_device_that_cannot_take_part_leaves_the_count(self):
        """One device declines because it has another version of the task; the other three complete the rounds."""
        made = fleet_of("abcd")
        send(made, "d", Decline(DeclineReason.SCHEMA_MISMATCH, "another version"))
        all_report(made, "abc", 5.0)
        assert (made.records[0].needed, made.required_devices()) == (3, 3)

    def test_decline_with_reason_revoked_counts_as_any_other_decline(self):
        """The text of a decline has no influence: a fleet of two still needs two updates."""
        made = fleet_of("ab")
        send(made, "b", Decline(DeclineReason.PRIVATE_POLICY, "revoked"))
        assert made.fleet.count.standing == Standing(2, left=1)
        assert made.required_devices() == 2


class TestVanish:
    def test_three_of_four_vanish_the_run_fails_and_names_them(self):
        made = fleet_of("abcd", target_ua=0.9)
        all_report(made, "abcd", 5.0, 0.5)
        leave(made, "bcd", 6.0)
        made.handle(ModelPublished(model()), 6.0)
        send(made, "a", Accept(10), 7.0, 2)
        end = play_to_the_end(made, 7.0)
        assert [record.outcome for record in made.records] == ["aggregated", "failed"]
        assert (made.required_devices(), made.fleet.present) == (4, 1)
        assert end.reason is Stopped.FAILED
        assert end.detail == (
            "1 of 4 devices came within 120 s; missing: b (offline), c (offline), d (offline); "
            "`fedpatch devices drain DEVICE` takes one out of the count"
        )

    def test_drained_devices_do_not_count_and_the_run_goes_on(self):
        made = fleet_of("abcd", round_interval_s=10.0)
        all_report(made, "abcd", 5.0)
        leave(made, "bcd", 6.0)
        assert made.handle(TimePassed(), 10.0) == made.handle(TimePassed(), 70.0) == []
        assert made.handle(HoldsChanged(dict.fromkeys("bcd", DRAINED)), 71.0) == [PublishModel(2)]
        assert next_round(made, 71.0) == ["a"]
        all_report(made, "a", 72.0)
        assert made.records[-1].outcome == "aggregated"

    def test_missing_minority_does_not_count_until_it_is_back(self):
        made = fleet_of("abcd", round_interval_s=10.0)
        all_report(made, "abcd", 5.0)
        made.handle(DevicePresence("d", gone()), 6.0)
        assert made.handle(TimePassed(), 10.0) == []
        assert made.required_devices() == 4
        assert made.handle(TimePassed(), 6.0 + RETURN_S - 0.1) == []
        assert made.handle(TimePassed(), 6.0 + RETURN_S) == [PublishModel(2)]
        assert next_round(made, 71.0) == list("abc")
        all_report(made, "abc", 75.0)
        assert made.required_devices() == 3
        assert made.handle(DevicePresence("d", there("b2")), 76.0) == [PublishModel(3)]
        assert next_round(made, 76.0) == list("abcd")

    def test_missing_half_of_the_fleet_counts(self):
        made = fleet_of("abcd", round_interval_s=10.0)
        all_report(made, "abcd", 5.0)
        leave(made, "cd", 6.0)
        made.handle(TimePassed(), 10.0)
        assert made.handle(TimePassed(), 6.0 + RETURN_S) == []
        end_of(made.handle(TimePassed(), 10.0 + 120.0))

    def test_devices_of_earlier_epochs_count_in_a_resumed_run(self):
        before = [RoundRecord(1, "aggregated", 4, 4, 0, 4)]
        made = Engine(run_spec(epoch=2, devices=1, **DEFAULTS), records=before, jitter=random.Random(1))
        made.fleet.remember("abcd")
        made.handle(RunStarted(), 0.0)
        made.handle(DevicePresence("a", there()), 0.0)
        assert (made.open, made.required_devices(), made.fleet.missing()) == (None, 4, ["b", "c", "d"])
        join(made, "bcd", 1.0)
        assert current(made).round.policy.target == 4

    def test_absent_devices_that_are_online_do_not_stand_in_for_those_that_vanish(self):
        """Two of ten devices hang and two more go offline: after a minute the run continues with the other six."""
        made = resumed("abcdefghij", absent={"i": 3, "j": 3}, round_interval_s=60.0)
        join(made, "abcdefghij")
        assert next_round(made, 0.0) == list("abcdefgh")
        all_report(made, "abcdefgh", 5.0)
        leave(made, "gh", 6.0)
        assert made.handle(TimePassed(), 60.0) == []
        assert (made.present, made.required_devices()) == (6, 7)
        assert made.handle(TimePassed(), 60.0 + RETURN_S) == [PublishModel(8)]
        assert next_round(made, 60.0 + RETURN_S) == list("abcdef")
        all_report(made, "abcdef", 125.0)

    def test_absent_device_is_invited_when_its_turn_comes(self):
        made = resumed("abcd", absent={"d": 1}, devices=1)
        join(made, "abd")
        assert next_round(made, 0.0) == list("abd")

    def test_run_that_waited_in_vain_invites_absent_devices_early(self):
        """All four devices are needed, and the absent one, which hung for long, may have recovered."""
        made = resumed("abcd", absent={"d": 4}, min_cohort=4)
        join(made, "abcd")
        assert (made.open, made.present, made.required_devices()) == (None, 3, 4)
        assert made.handle(TimePassed(), RETURN_S) == [PublishModel(7)]
        assert next_round(made, RETURN_S) == list("abcd")

    def test_half_of_the_fleet_absent_or_given_up_all_count(self):
        """One of four devices hangs, and one is offline."""
        made = resumed("abcd", absent={"d": 3})
        join(made, "abd")
        assert made.handle(TimePassed(), RETURN_S) == []
        assert (made.present, made.required_devices()) == (3, 4)

    def test_participation_of_half_needs_half_of_the_fleet(self):
        made = fleet_of("abcdefghij", participation=0.5, round_interval_s=10.0)
        all_report(made, sorted(current(made).round.participants), 5.0)
        leave(made, "fghij", 6.0)
        assert (made.required_devices(), made.handle(TimePassed(), 10.0)) == (4, [PublishModel(2)])
        assert next_round(made, 10.0) == list("abcde")
        all_report(made, "abcde", 15.0)
        leave(made, "cde", 16.0)
        assert made.handle(TimePassed(), 20.0) == []


def resumed(known: str, absent: dict[str, int], **changes: Any) -> Engine:
    """Return a run that is resumed after its 6th round; `absent` is from the record of this round."""
    before = [RoundRecord(6, "aggregated", 4, 4, 0, 4, absent=absent)]
    spec = run_spec(**{**DEFAULTS, "devices": len(known), **changes})
    made = Engine(spec, records=before, jitter=random.Random(1))
    made.fleet.remember(known)
    made.handle(RunStarted(), 0.0)
    return made


def again(made: Engine, devices: str) -> Engine:
    """Return the run in its next epoch, as resumed from the registry."""
    spec = run_spec(**{**DEFAULTS, "epoch": made.spec.epoch + 1, "devices": len(devices)})
    resumed = Engine(spec, records=made.records, jitter=random.Random(1))
    resumed.fleet.remember(devices)
    resumed.handle(RunStarted(), 0.0)
    return resumed


class TestOffenders:
    @pytest.mark.parametrize("devices", ["abc", "abcd"])
    def test_offender_leaves_the_count_and_the_run_goes_on(self, devices):
        honest = devices[:-1]
        made = fleet_of(devices)
        offend(made, devices[-1], 0.2)
        for number in range(1, 6):
            all_report(made, honest, 5.0 * number)
            assert next_round(made, 5.0 * number) == list(honest)
        assert [record.outcome for record in made.records] == ["aggregated"] * 5
        assert made.records[0].offenders == {devices[-1]: "not_finite"}
        assert made.records[1].offenders == {}

    def test_offender_among_two_ends_the_run(self):
        made = fleet_of("ab")
        send(made, "a", Accept(10), 0.1)
        offend(made, "b", 0.2)
        end = play_to_the_end(made, 0.2)
        assert [record.failure for record in made.records] == ["quorum_missed"]
        assert end.detail.startswith(
            "1 of 2 devices came within 120 s; 1 are not asked again in this run, as b: not_finite"
        )

    def test_offender_is_not_invited_in_the_resumed_run(self):
        made = fleet_of("abcd")
        offend(made, "d", 0.2)
        all_report(made, "abc", 5.0)
        made = again(made, "abcd")
        join(made, "abcd", 0.0, "b2")
        made.handle(TimePassed(), RETURN_S)
        assert next_round(made, RETURN_S) == list("abc")

    def test_refused_update_without_offence_changes_no_count(self):
        made = fleet_of("abcd")
        offend(made, "d", 0.2, RefuseReason.NORM_BOUND)
        assert (current(made).round.needed, made.fleet.offenders) == (4, {})

    def test_rounds_failed_by_offences_do_not_count_as_failed_rounds(self):
        made = fleet_of("abcdefghij", participation=0.1, max_failed_rounds=1)
        now = 0.0
        for _ in range(4):
            assert made.open is not None
            [device] = made.open.round.participants
            offend(made, device, now)
            assert (made.records[-1].failure, made.stopped) == ("quorum_missed", None)
            now += 100.0
            next_round(made, now)
        [device] = current(made).round.participants
        all_report(made, device, now)
        assert made.records[-1].outcome == "aggregated"

    @pytest.mark.parametrize(("leaving", "rounds"), [("b", 3), ("bc", 4)])
    def test_a_device_that_leaves_again_and_again_excuses_one_failed_round(self, leaving, rounds):
        made = fleet_of(f"a{leaving}", quorum=1.0, max_failed_rounds=2, recruit_deadline_s=1.0)
        now = 0.0
        for boot in range(1, 9):
            if made.stopped is not None:
                break
            leaves = leaving[boot % len(leaving)]
            send(made, leaves, Decline(DeclineReason.PRIVATE_POLICY), now, made.last_round)
            for device in sorted({"a", *leaving} - {leaves}):
                send(made, device, Decline(DeclineReason.UNWILLING), now, made.last_round)
            now += 100.0
            made.handle(TimePassed(), now)
            made.handle(DevicePresence(leaves, there(f"b{boot + 1}")), now)
            if made.open is not None:
                made.handle(ModelPublished(model()), now)
        assert (made.stopped, len(made.records)) == (Stopped.FAILED, rounds)


class TestTarget:
    def test_target_is_not_reached_by_a_failed_round(self):
        made = fleet_of("abcd", target_ua=0.9)
        accept(made, "abcd")
        report_all(made, "ab", 5.0, 0.95)
        made.handle(TimePassed(), 301.0)
        [record] = made.records
        assert (record.outcome, record.user_accuracy, made.stopped) == ("failed", 0.95, None)

    def test_target_needs_a_quorum_of_measured_devices(self):
        made = fleet_of("abcd", target_ua=0.9)
        report_all(made, "bcd", 5.0, None)
        report_of(made, "a", 5.0, 0.95)
        made.handle(Aggregated(), 6.0)
        [record] = made.records
        assert (record.outcome, record.measured, record.needed, made.stopped) == ("aggregated", 1, 4, None)
        made.handle(ModelPublished(model()), 6.0)
        assert end_of(all_report(made, "abcd", 7.0, 0.95)) == EndRun(Stopped.TARGET_UA, "")


class TestEnd:
    def test_end_after_failed_rounds_reports_an_unchanged_model(self):
        made = fleet_of("abcd", rounds=1)
        offend(made, "a", 1.0, RefuseReason.NORM_BOUND)
        end = end_of(made.handle(TimePassed(), 301.0))
        assert end.reason is Stopped.MAX_ROUNDS
        why = "the last one: too_few_accepted, with 0 of the 4 updates needed"
        assert end.detail.startswith(f"no round succeeded, so the model is unchanged; {why}")
