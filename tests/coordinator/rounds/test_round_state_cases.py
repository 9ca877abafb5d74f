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
    def test_ends_when_everybody_has_answered(self):
        """Nobody is waited for who said no."""
        current = play(begun(quorum=0.5), 1.0, "a:accept", "b:decline", "c:accept")
        assert current.phase is Phase.RECRUITING
        assert play(current, 2.0, "d:decline").phase is Phase.COLLECTING
        assert current.reasons(State.DECLINED) == {"": 2}

    def test_takes_more_than_are_wanted(self):
        """Where more devices were invited than are wanted, all may work; only the wanted number counts for the quorum."""
        current = play(begun(target=2, quorum=1.0), 1.0, "a:accept", "b:accept")
        assert current.phase is Phase.RECRUITING
        assert play(current, 2.0, "c:accept", "d:accept").phase is Phase.COLLECTING
        assert (current.needed, len(current.accepted())) == (2, 4)

    def test_ends_at_its_deadline_with_those_that_are_there(self):
        """A device that does not answer costs the recruiting time, not the round."""
        current = play(begun(quorum=0.25), 1.0, "a:accept")
        assert current.next_deadline() == 10.0
        current.tick(10.0)
        assert (current.phase, current.devices(State.LATE)) == (Phase.COLLECTING, ["b", "c", "d"])

    def test_ends_at_the_rounds_deadline_if_that_is_earlier(self):
        """A run's time limit may leave less time than recruiting would take."""
        current = begun(deadline_s=5.0)
        assert current.next_deadline() == 5.0
        current.tick(5.0)
        assert current.over

    @pytest.mark.parametrize(("min_cohort", "accepting"), [(1, ""), (2, "a"), (4, "abc")])
    def test_fails_without_enough_devices(self, min_cohort, accepting):
        """Below the smallest cohort the round is not worth its while."""
        current = begun(min_cohort=min_cohort)
        play(current, 1.0, *(f"{device}:accept" for device in accepting))
        current.tick(10.0)
        assert (current.phase, current.failure) == (Phase.FAILED, "too_few_accepted")

    def test_fails_at_once_when_all_decline(self):
        """Nothing is waited for when nothing can come."""
        current = play(begun("ab"), 1.0, "a:decline", "b:decline")
        assert (current.phase, current.failure) == (Phase.FAILED, "too_few_accepted")

    def test_of_nobody_fails_at_once(self):
        """A round without devices is over when it begins."""
        assert begun("").failure == "too_few_accepted"

    def test_waits_for_a_device_that_vanished_before_it_answered(self):
        """It may come back until recruiting ends."""
        current = play(begun("ab"), 1.0, "a:accept", "b:vanish")
        assert current.phase is Phase.RECRUITING
        assert play(current, 2.0, "b:restart", "b:accept").phase is Phase.COLLECTING

    def test_takes_a_report_before_it_ends(self):
        """A quick device may be done while others have not answered."""
        current = play(begun("ab", quorum=0.5), 1.0, "a:report")
        assert current.phase is Phase.RECRUITING
        current.tick(10.0)
        assert (current.phase, current.devices(State.REPORTED)) == (Phase.AGGREGATING, ["a"])


class TestCollecting:
    def test_closes_at_once_when_all_have_reported(self):
        """The last report closes the round."""
        current = play(collecting(), 5.0, "a:report", "b:report", "c:report")
        assert current.phase is Phase.COLLECTING
        assert play(current, 6.0, "d:report").phase is Phase.AGGREGATING

    def test_of_more_than_are_wanted_closes_after_the_first_ones(self):
        """With over-selection the quickest make the quorum, and the rest has the grace time."""
        current = play(collecting(target=2, quorum=1.0), 5.0, "c:report", "a:report")
        assert (current.phase, current.next_deadline()) == (Phase.COLLECTING, 25.0)
        current.tick(25.0)
        assert (current.phase, current.devices(State.LATE)) == (Phase.AGGREGATING, ["b", "d"])

    def test_of_more_than_are_wanted_survives_those_that_drop_out(self):
        """The devices over and above make up for those that fail."""
        current = play(collecting(target=2, quorum=1.0), 5.0, "a:fail", "b:vanish")
        current.tick(50.0)
        assert play(current, 60.0, "c:report", "d:report").phase is Phase.AGGREGATING

    def test_gives_stragglers_the_grace_time_after_the_quorum(self):
        """From the quorum on the rest has so long and no longer."""
        current = play(collecting(), 5.0, "a:report", "b:report", "c:report", "d:offer")
        assert (current.needed, current.quorum_s, current.next_deadline()) == (3, 5.0, 25.0)
        current.tick(24.9)
        assert current.phase is Phase.COLLECTING
        current.tick(25.0)
        assert (current.phase, current.devices(State.LATE)) == (Phase.AGGREGATING, ["d"])

    def test_closes_at_the_deadline_with_the_quorum_though_grace_is_left(self):
        """The deadline is the end for stragglers, also for one that is uploading."""
        current = play(collecting(), 95.0, "a:report", "b:report", "c:report", "d:offer")
        assert current.next_deadline() == 100.0
        current.tick(100.0)
        assert current.phase is Phase.AGGREGATING

    def test_waits_past_the_deadline_for_uploads_that_make_the_quorum(self):
        """Updates that are nearly there are worth the grace time."""
        current = play(collecting(), 90.0, "a:report", "b:report", "c:offer", "d:train")
        current.tick(100.0)
        assert (current.phase, current.next_deadline()) == (Phase.COLLECTING, 120.0)
        assert play(current, 110.0, "c:report").phase is Phase.AGGREGATING

    def test_fails_when_those_uploads_do_not_come(self):
        """After the grace time the quorum is missed, or as soon as it cannot be met any more."""
        current = play(collecting(), 90.0, "a:report", "b:report", "c:offer")
        current.tick(120.0)
        assert (current.phase, current.failure) == (Phase.FAILED, "quorum_missed")
        current = play(collecting(), 90.0, "a:report", "b:report", "c:offer")
        current.tick(100.0)
        assert play(current, 105.0, "c:vanish").failure == "quorum_missed"

    def test_fails_at_the_deadline_without_the_quorum(self):
        """Uploads that could not make the quorum are not waited for."""
        current = play(collecting(), 90.0, "a:report", "b:offer")
        assert current.next_deadline() == 100.0
        current.tick(100.0)
        assert (current.phase, current.failure) == (Phase.FAILED, "quorum_missed")
        assert current.devices(State.LATE) == ["b", "c", "d"]

    def test_fails_as_soon_as_the_quorum_is_out_of_reach(self):
        """With too few devices left at work there is nothing to wait for."""
        current = play(collecting(), 5.0, "a:fail")
        assert current.phase is Phase.COLLECTING
        assert play(current, 6.0, "b:fail").failure == "quorum_missed"

    def test_needs_the_smallest_cohort_whatever_the_quorum(self):
        """A quorum of few devices is still no fewer than the policy's minimum."""
        current = play(collecting(quorum=0.1, min_cohort=3), 5.0, "a:report", "b:report")
        assert current.quorum_s is None
        assert play(current, 6.0, "c:report").quorum_s == 6.0

    @pytest.mark.parametrize(("quorum", "needed"), [(0.01, 1), (0.5, 2), (0.7, 3), (0.75, 3), (0.76, 4), (1.0, 4)])
    def test_rounds_the_quorum_up(self, quorum, needed):
        """The share of the devices that the round is meant for, in whole devices."""
        assert collecting(quorum=quorum).needed == needed


class TestLostDevices:
    def test_are_waited_for_then_given_up(self):
        """All others have reported: the round waits the absence out, then closes."""
        current = play(collecting(grace_s=90.0), 5.0, "a:vanish", "b:report", "c:report", "d:report")
        assert (current.phase, current.next_deadline()) == (Phase.COLLECTING, 20.0)
        current.tick(20.0)
        assert (current.phase, current.reasons(State.FAILED)) == (Phase.AGGREGATING, {"lost": 1})

    def test_that_come_back_go_on(self):
        """A sign of the same job puts the device where it is."""
        current = play(collecting(), 5.0, "a:train", "a:vanish")
        assert play(current, 10.0, "a:offer").devices(State.UPLOADING) == ["a"]
        current.tick(20.0)
        assert current.devices(State.UPLOADING) == ["a"]

    def test_are_counted_from_their_last_absence(self):
        """Coming and going twice is not being away for long; a second will of the same absence is no news."""
        current = play(collecting(), 5.0, "a:vanish")
        play(current, 15.0, "a:accept", "a:vanish")
        play(current, 29.0, "a:vanish")
        assert current.devices(State.LOST) == ["a"]
        current.tick(30.0)
        assert current.devices(State.FAILED) == ["a"]

    def test_that_come_back_too_late_stay_out(self):
        """What the round has given up it does not take back."""
        current = play(collecting(), 5.0, "a:vanish")
        current.tick(20.0)
        assert not current.handle("a", Event.OFFER, 21.0)

    def test_that_restart_begin_again(self):
        """A device that lost its work is asked again, and still counts as one that accepted."""
        current = play(collecting(), 5.0, "a:train", "a:restart")
        assert (current.devices(State.INVITED), len(current.accepted()), current.needed) == (["a"], 4, 3)
        play(current, 6.0, "a:accept", "a:train", "a:offer", "a:report", "b:report", "c:report", "d:report")
        assert current.phase is Phase.AGGREGATING


class TestBooks:
    def test_time_is_cut_along_the_last_report(self):
        """Each phase has the seconds of the device that closed the round."""
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

    def test_time_lost_by_a_restart_is_the_time_of_what_it_interrupted(self):
        """A phase begins when the device was first seen in it."""
        current = play(begun("a"), 1.0, "a:accept")
        play(current, 2.0, "a:train")
        play(current, 5.0, "a:restart")
        play(current, 6.0, "a:accept")
        play(current, 7.0, "a:train")
        play(current, 9.0, "a:offer")
        play(current, 10.0, "a:report")
        seconds = current.phase_seconds()
        assert (seconds.recruit, seconds.download, seconds.train, seconds.upload) == (1.0, 1.0, 7.0, 1.0)

    def test_time_left_is_what_a_request_states(self):
        """It counts down to the deadline and stops at zero."""
        current = begun()
        assert [current.remaining_s(now) for now in (0.0, 40.0, 100.0, 110.0)] == [100.0, 60.0, 0.0, 0.0]

    def test_models_are_counted_where_they_arrived(self):
        """A device that trained or did more has had the whole model."""
        current = play(collecting(), 5.0, "a:train", "b:offer", "c:report")
        assert len(current.had_model()) == 3

    def test_an_interrupt_while_aggregating_keeps_the_times(self):
        """Giving up late takes nothing from the phases before."""
        current = play(collecting(), 5.0, *(f"{device}:report" for device in "abcd"))
        current.abandon(8.0, "interrupted")
        assert current.phase_seconds().aggregate == 3.0

    def test_reasons_are_counted(self):
        """How often each reason led to a state."""
        current = begun()
        for device, reason in (("a", "unwilling"), ("b", "unwilling"), ("c", "unknown_task")):
            current.handle(device, Event.DECLINE, 1.0, reason)
        assert current.reasons(State.DECLINED) == {"unwilling": 2, "unknown_task": 1}
        assert current.participants["d"] == Participant(since={State.INVITED: 0.0})


class TestWhoCounts:
    """The quorum is a share of the devices that the round is meant for (coordinator.cohort.quorum)."""

    def test_one_of_ten_that_accepts_makes_no_round(self):
        """Nine decline: what the tenth would report is not the fleet's."""
        current = play(begun("abcdefghij", quorum=0.8), 1.0, "a:accept", *(f"{one}:decline" for one in "bcdefghij"))
        assert (current.needed, current.phase, current.failure) == (8, Phase.FAILED, "too_few_accepted")

    def test_a_device_that_is_not_invited_since_it_is_away_counts(self):
        """The round is meant for ten, of which eight could be invited: all of these must report."""
        current = begun("abcdefgh", target=10, quorum=0.8)
        assert current.needed == 8

    def test_an_offender_leaves_the_count(self):
        """The three others make the quorum of four of which one has left."""
        current = collecting(quorum=0.8)
        assert current.needed == 4
        assert current.handle("d", Event.FAIL, 2.0, "not_finite", leaves=True)
        assert (current.needed, current.phase) == (3, Phase.COLLECTING)
        assert play(current, 3.0, "a:report", "b:report", "c:report").phase is Phase.AGGREGATING

    def test_a_device_that_fails_by_misfortune_counts(self):
        """Of four that must all report one cannot: the quorum is missed."""
        current = collecting(quorum=0.8)
        current.handle("d", Event.FAIL, 2.0, "training")
        assert (current.needed, current.failure) == (4, "quorum_missed")

    def test_one_device_alone_never_makes_a_round_of_two(self):
        """The other one is an offender: one device must not decide alone."""
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

    def test_an_event_that_changes_nothing_takes_no_device_out_of_the_count(self):
        """Its update is committed; what it is refused later does not make its round smaller."""
        current = play(collecting(quorum=0.8), 2.0, "d:report")
        assert not current.handle("d", Event.FAIL, 3.0, "quarantined", leaves=True)
        assert current.needed == 4
