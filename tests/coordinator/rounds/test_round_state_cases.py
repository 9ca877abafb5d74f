"""The round, case by case: who is waited for, how long, and what the books say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.coordinator.rounds.participant_transitions import Event, Phase, State
from fedpatch.coordinator.rounds.round_phases import Participant, Round, RoundPolicy

POLICY = RoundPolicy(
    target=4, min_cohort=1, quorum=0.75, recruit_deadline_s=10.0, deadline_s=100.0, grace_s=20.0, rejoin_s=15.0
)


def begun(devices: str = "abcd", **changes) -> Round:
    """A round at time 0 with a device per letter, which is meant for them unless `changes` say otherwise."""
    current = Round(1, replace(POLICY, **{"target": len(devices), **changes}), 0.0)
    current.begin(tuple(devices), 0.0)
    return current


def play(current: Round, now: float, *events: str) -> Round:
    """Events as `device:event`."""
    for event in events:
        device, _, what = event.partition(":")
        current.handle(device, Event(what), now)
    return current


def collecting(**changes) -> Round:
    """A round in which a, b, c and d have accepted by second 1."""
    return play(begun(**changes), 1.0, "a:accept", "b:accept", "c:accept", "d:accept")


class TestRecruiting:
    def test_recruiting_ends_when_all_have_answered(self):
        current = play(begun(quorum=0.5), 1.0, "a:accept", "b:decline", "c:accept")
        assert current.phase is Phase.RECRUITING
        assert play(current, 2.0, "d:decline").phase is Phase.COLLECTING
        assert current.reasons(State.DECLINED) == {"": 2}

    def test_more_accepting_devices_than_the_target_all_work(self):
        current = play(begun(target=2, quorum=1.0), 1.0, "a:accept", "b:accept")
        assert current.phase is Phase.RECRUITING
        assert play(current, 2.0, "c:accept", "d:accept").phase is Phase.COLLECTING
        assert (current.needed, len(current.accepted())) == (2, 4)

    def test_recruiting_ends_at_its_deadline(self):
        current = play(begun(quorum=0.25), 1.0, "a:accept")
        assert current.next_deadline() == 10.0
        current.tick(10.0)
        assert (current.phase, current.devices(State.LATE)) == (Phase.COLLECTING, ["b", "c", "d"])

    def test_recruiting_ends_at_the_deadline_of_the_round(self):
        current = begun(deadline_s=5.0)
        assert current.next_deadline() == 5.0
        current.tick(5.0)
        assert current.over

    @pytest.mark.parametrize(("min_cohort", "accepting"), [(1, ""), (2, "a"), (4, "abc")])
    def test_too_few_accepting_devices_fail_the_round(self, min_cohort, accepting):
        current = begun(min_cohort=min_cohort)
        play(current, 1.0, *(f"{device}:accept" for device in accepting))
        current.tick(10.0)
        assert (current.phase, current.failure) == (Phase.FAILED, "too_few_accepted")

    def test_declines_of_all_fail_the_round_at_once(self):
        current = play(begun("ab"), 1.0, "a:decline", "b:decline")
        assert (current.phase, current.failure) == (Phase.FAILED, "too_few_accepted")

    def test_round_without_devices_fails_at_once(self):
        assert begun("").failure == "too_few_accepted"

    def test_recruiting_waits_for_a_device_that_vanished(self):
        current = play(begun("ab"), 1.0, "a:accept", "b:vanish")
        assert current.phase is Phase.RECRUITING
        assert play(current, 2.0, "b:restart", "b:accept").phase is Phase.COLLECTING

    def test_report_while_recruiting_counts(self):
        current = play(begun("ab", quorum=0.5), 1.0, "a:report")
        assert current.phase is Phase.RECRUITING
        current.tick(10.0)
        assert (current.phase, current.devices(State.REPORTED)) == (Phase.AGGREGATING, ["a"])


class TestCollecting:
    def test_last_report_closes_the_round(self):
        current = play(collecting(), 5.0, "a:report", "b:report", "c:report")
        assert current.phase is Phase.COLLECTING
        assert play(current, 6.0, "d:report").phase is Phase.AGGREGATING

    def test_over_selected_round_closes_a_grace_time_after_the_quorum(self):
        current = play(collecting(target=2, quorum=1.0), 5.0, "c:report", "a:report")
        assert (current.phase, current.next_deadline()) == (Phase.COLLECTING, 25.0)
        current.tick(25.0)
        assert (current.phase, current.devices(State.LATE)) == (Phase.AGGREGATING, ["b", "d"])

    def test_over_selected_devices_make_up_for_failures(self):
        current = play(collecting(target=2, quorum=1.0), 5.0, "a:fail", "b:vanish")
        current.tick(50.0)
        assert play(current, 60.0, "c:report", "d:report").phase is Phase.AGGREGATING

    def test_stragglers_have_the_grace_time_after_the_quorum(self):
        current = play(collecting(), 5.0, "a:report", "b:report", "c:report", "d:offer")
        assert (current.needed, current.quorum_s, current.next_deadline()) == (3, 5.0, 25.0)
        current.tick(24.9)
        assert current.phase is Phase.COLLECTING
        current.tick(25.0)
        assert (current.phase, current.devices(State.LATE)) == (Phase.AGGREGATING, ["d"])

    def test_deadline_ends_the_grace_time(self):
        current = play(collecting(), 95.0, "a:report", "b:report", "c:report", "d:offer")
        assert current.next_deadline() == 100.0
        current.tick(100.0)
        assert current.phase is Phase.AGGREGATING

    def test_uploads_that_make_the_quorum_are_awaited_past_the_deadline(self):
        current = play(collecting(), 90.0, "a:report", "b:report", "c:offer", "d:train")
        current.tick(100.0)
        assert (current.phase, current.next_deadline()) == (Phase.COLLECTING, 120.0)
        assert play(current, 110.0, "c:report").phase is Phase.AGGREGATING

    def test_missing_uploads_after_the_deadline_fail_the_round(self):
        current = play(collecting(), 90.0, "a:report", "b:report", "c:offer")
        current.tick(120.0)
        assert (current.phase, current.failure) == (Phase.FAILED, "quorum_missed")
        current = play(collecting(), 90.0, "a:report", "b:report", "c:offer")
        current.tick(100.0)
        assert play(current, 105.0, "c:vanish").failure == "quorum_missed"

    def test_uploads_short_of_the_quorum_are_not_awaited(self):
        current = play(collecting(), 90.0, "a:report", "b:offer")
        assert current.next_deadline() == 100.0
        current.tick(100.0)
        assert (current.phase, current.failure) == (Phase.FAILED, "quorum_missed")
        assert current.devices(State.LATE) == ["b", "c", "d"]

    def test_quorum_out_of_reach_fails_the_round_at_once(self):
        current = play(collecting(), 5.0, "a:fail")
        assert current.phase is Phase.COLLECTING
        assert play(current, 6.0, "b:fail").failure == "quorum_missed"

    def test_quorum_is_at_least_min_cohort(self):
        current = play(collecting(quorum=0.1, min_cohort=3), 5.0, "a:report", "b:report")
        assert current.quorum_s is None
        assert play(current, 6.0, "c:report").quorum_s == 6.0

    @pytest.mark.parametrize(("quorum", "needed"), [(0.01, 1), (0.5, 2), (0.7, 3), (0.75, 3), (0.76, 4), (1.0, 4)])
    def test_quorum_is_rounded_up(self, quorum, needed):
        assert collecting(quorum=quorum).needed == needed


class TestLostDevices:
    def test_lost_device_fails_after_rejoin_s(self):
        current = play(collecting(grace_s=90.0), 5.0, "a:vanish", "b:report", "c:report", "d:report")
        assert (current.phase, current.next_deadline()) == (Phase.COLLECTING, 20.0)
        current.tick(20.0)
        assert (current.phase, current.reasons(State.FAILED)) == (Phase.AGGREGATING, {"lost": 1})

    def test_lost_device_that_comes_back_goes_on(self):
        current = play(collecting(), 5.0, "a:train", "a:vanish")
        assert play(current, 10.0, "a:offer").devices(State.UPLOADING) == ["a"]
        current.tick(20.0)
        assert current.devices(State.UPLOADING) == ["a"]

    def test_rejoin_s_counts_from_the_last_absence(self):
        current = play(collecting(), 5.0, "a:vanish")
        play(current, 15.0, "a:accept", "a:vanish")
        play(current, 29.0, "a:vanish")
        assert current.devices(State.LOST) == ["a"]
        current.tick(30.0)
        assert current.devices(State.FAILED) == ["a"]

    def test_restarted_device_is_invited_again_and_still_counts(self):
        current = play(collecting(), 5.0, "a:train", "a:restart")
        assert (current.devices(State.INVITED), len(current.accepted()), current.needed) == (["a"], 4, 3)
        play(current, 6.0, "a:accept", "a:train", "a:offer", "a:report", "b:report", "c:report", "d:report")
        assert current.phase is Phase.AGGREGATING


class TestBooks:
    def test_phases_have_the_seconds_of_the_last_report(self):
        current = Round(1, replace(POLICY, target=2), 0.0)
        current.begin(("a", "b"), 1.0)
        play(current, 3.0, "a:accept", "b:accept")
        play(current, 4.0, "a:train", "a:offer", "a:report")
        play(current, 7.0, "b:train")
        play(current, 15.0, "b:offer")
        play(current, 16.5, "b:report")
        current.finish(20.0)
        assert current.phase is Phase.CLOSED
        seconds = current.phase_seconds()
        assert (seconds.select, seconds.recruit, seconds.download) == (1.0, 2.0, 4.0)
        assert (seconds.train, seconds.upload, seconds.aggregate) == (8.0, 1.5, 3.5)
        assert current.elapsed_s(20.0) == 20.0

    def test_time_lost_by_a_restart_counts_for_the_interrupted_phase(self):
        current = play(begun("a"), 1.0, "a:accept")
        play(current, 2.0, "a:train")
        play(current, 5.0, "a:restart")
        play(current, 6.0, "a:accept")
        play(current, 7.0, "a:train")
        play(current, 9.0, "a:offer")
        play(current, 10.0, "a:report")
        seconds = current.phase_seconds()
        assert (seconds.recruit, seconds.download, seconds.train, seconds.upload) == (1.0, 1.0, 7.0, 1.0)

    def test_remaining_time_stops_at_zero(self):
        current = begun()
        assert [current.remaining_s(now) for now in (0.0, 40.0, 100.0, 110.0)] == [100.0, 60.0, 0.0, 0.0]

    def test_devices_that_trained_or_more_had_the_model(self):
        current = play(collecting(), 5.0, "a:train", "b:offer", "c:report")
        assert len(current.had_model()) == 3

    def test_interrupt_while_aggregating_keeps_the_times(self):
        current = play(collecting(), 5.0, *(f"{device}:report" for device in "abcd"))
        current.abandon(8.0, "interrupted")
        assert current.phase_seconds().aggregate == 3.0

    def test_reasons_of_a_state_are_counted(self):
        current = begun()
        for device, reason in (("a", "unwilling"), ("b", "unwilling"), ("c", "unknown_task")):
            current.handle(device, Event.DECLINE, 1.0, reason)
        assert current.reasons(State.DECLINED) == {"unwilling": 2, "unknown_task": 1}
        assert current.participants["d"] == Participant(since={State.INVITED: 0.0})


class TestWhoCounts:
    """The quorum is a share of the devices that the round is meant for (coordinator.cohort.quorum)."""

    def test_one_of_ten_accepting_fails_the_round(self):
        current = play(begun("abcdefghij", quorum=0.8), 1.0, "a:accept", *(f"{one}:decline" for one in "bcdefghij"))
        assert (current.needed, current.phase, current.failure) == (8, Phase.FAILED, "too_few_accepted")

    def test_offender_leaves_the_count(self):
        current = collecting(quorum=0.8)
        assert current.needed == 4
        assert current.handle("d", Event.FAIL, 2.0, "not_finite", leaves=True)
        assert (current.needed, current.phase) == (3, Phase.COLLECTING)
        assert play(current, 3.0, "a:report", "b:report", "c:report").phase is Phase.AGGREGATING

    def test_device_that_fails_without_offence_counts(self):
        current = collecting(quorum=0.8)
        current.handle("d", Event.FAIL, 2.0, "training")
        assert (current.needed, current.failure) == (4, "quorum_missed")

    def test_round_of_two_with_an_offender_fails(self):
        current = play(begun("ab", quorum=0.8), 1.0, "a:accept", "b:accept")
        current.handle("b", Event.FAIL, 2.0, "not_finite", leaves=True)
        assert (current.needed, current.failure) == (2, "quorum_missed")

    def test_an_invited_device_beyond_the_target_stands_in_for_an_offender(self):
        """Five were invited for a round that is meant for four: four are left."""
        current = play(begun("abcde", target=4, quorum=1.0), 1.0, *(f"{device}:accept" for device in "abcde"))
        current.handle("e", Event.FAIL, 2.0, "not_finite", leaves=True)
        assert current.needed == 4
        current.handle("d", Event.FAIL, 2.0, "not_finite", leaves=True)
        assert current.needed == 3

    def test_event_without_effect_changes_no_count(self):
        current = play(collecting(quorum=0.8), 2.0, "d:report")
        assert not current.handle("d", Event.FAIL, 3.0, "quarantined", leaves=True)
        assert current.needed == 4
