"""What an owner's preferences make of offers and of work in hand, second by second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import ContinueTraining, EndJob, PauseTraining
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.device_agent.policy.daily_budget import Usage
from fedpatch.device_agent.policy.owner_policy import FRESH_S, LOOK_AT_WORK_S, LOOK_IDLE_S
from fedpatch.shared.wire.messages import Failed
from fedpatch.shared.wire.reason_codes import Condition, FailReason
from tests.device_agent.jobs import KEY, ask, downloading, said_back, training, uploading
from tests.device_agent.owners import NOON, WELL, Bench, facts
from tests.support.specs import update

UNPLUGGED = facts(external_power=False)
METERED = facts(metered=True)
PAUSED = facts(paused=True)


def idle() -> Job:
    """No work in hand."""
    return Job(max_blob_bytes=10_000)


class TestOffer:
    def test_waits_for_fresh_facts(self):
        """They are asked for once, however often the coordinator repeats itself."""
        bench = Bench()
        assert bench.consider(0.0) is None
        assert bench.consider(0.5) is None
        assert bench.book.asked == 1
        bench.see(idle(), WELL, 0.6)
        assert bench.consider(0.7) == AdmissionDecision(True)
        assert bench.consider(0.7 + FRESH_S + 0.1) is None
        assert bench.book.asked == 2

    def test_is_declined_with_the_condition_and_a_time(self):
        """And without a value that was found."""
        bench = Bench()
        bench.see(idle(), UNPLUGGED, 0.0)
        verdict = bench.consider(0.1)
        assert verdict is not None
        assert (verdict.accept, verdict.condition) == (False, Condition.NOT_CHARGING)
        assert verdict.retry_after_s > 0.0

    @pytest.mark.parametrize("admission", ["always", "never"])
    def test_asks_for_no_facts_where_the_order_is_plain(self, admission):
        """Nor does time pass for looks that nobody needs."""
        bench = Bench(admission)
        bench.see(idle(), UNPLUGGED, 0.0)
        verdict = bench.consider(5.0)
        assert verdict is not None and verdict.accept is (admission == "always")
        assert bench.owner.next_deadline(idle()) is None
        assert bench.book.asked == 0

    def test_counts_what_was_spent_today(self):
        """Also what the work in hand has taken so far."""
        bench = Bench(max_rounds_per_day=1)
        bench.owner.meter.begins_round()
        bench.see(idle(), WELL, 10.1)
        verdict = bench.consider(10.2)
        assert verdict is not None and verdict.condition is Condition.ROUNDS_SPENT


class TestWorkInHand:
    def test_outlasts_a_moment_without_power(self):
        """Plugged in again within the time that is given: nothing happened."""
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        assert bench.see(job, UNPLUGGED, 13.0, 14.0) == []
        assert bench.see(job, WELL, 14.5) == []
        assert bench.see(job, UNPLUGGED, 16.5, 17.5) == []

    def test_pauses_and_goes_on(self):
        """Presence tells of it for as long as it lasts."""
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        assert bench.see(job, UNPLUGGED, 13.0, 14.0, 15.0) == [PauseTraining()]
        assert bench.owner.unwilling is Condition.NOT_CHARGING
        assert bench.see(job, WELL, 16.0, 25.0) == []
        assert bench.see(job, WELL, 26.0)[0] == ContinueTraining()
        assert bench.owner.unwilling is None

    def test_is_given_up_after_the_longest_pause(self):
        """The coordinator hears which condition it was."""
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        bench.see(job, UNPLUGGED, 13.0, 15.0)
        assert bench.see(job, UNPLUGGED, 74.0) == []
        effects = bench.see(job, UNPLUGGED, 75.0)
        assert said_back(effects) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]
        assert isinstance(effects[-1], EndJob)

    @pytest.mark.parametrize("on_loss", ["finish", "abandon"])
    def test_ends_as_its_owner_configured(self, on_loss):
        """Finished whatever happens, or given up at once."""
        bench, job = Bench(on_loss=on_loss), training()
        bench.see(job, WELL, 12.0)
        said = said_back(bench.see(job, UNPLUGGED, 13.0, 15.0))
        assert said == ([] if on_loss == "finish" else [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)])

    @pytest.mark.parametrize(
        ("make", "found", "pauses"),
        [
            (downloading, UNPLUGGED, True),
            (downloading, METERED, True),
            (training, METERED, False),
            (uploading, UNPLUGGED, False),
            (uploading, METERED, True),
            (training, PAUSED, True),
            (uploading, PAUSED, True),
        ],
    )
    def test_needs_only_what_its_phase_uses(self, make, found, pauses):
        """Training uses no network, sending no power worth mentioning; a pause that the owner asked for is one."""
        bench, job = Bench(), make()
        bench.see(job, WELL, 21.0)
        bench.see(job, found, 22.0, 24.0)
        assert job.paused is pauses

    def test_is_noted_as_it_goes(self):
        """Whoever pulls the plug in every round gets no second allowance; pauses are no training."""
        bench, job = Bench(), training()
        bench.owner.meter.begins_round()
        bench.owner.meter.moved(500)
        bench.owner.tick(job, 10.0)
        assert bench.book.today == Usage(1, 500, 0.0)
        job.pause()
        bench.owner.tick(job, 40.0)
        assert bench.book.today == Usage(1, 500, 30.0)
        job.go_on(100.0)
        bench.owner.tick(job, 100.0)
        bench.owner.tick(idle(), 110.0)
        assert bench.book.today == Usage(1, 500, 40.0)
        bench.owner.tick(idle(), 200.0)
        assert bench.book.today == Usage(1, 500, 40.0)

    def test_is_noted_when_the_agent_ends(self):
        """In the middle of it."""
        bench = Bench()
        bench.owner.tick(training(), 10.0)
        bench.owner.stop(30.0)
        assert bench.book.today == Usage(0, 0, 20.0)

    def test_that_is_finished_does_not_make_the_device_willing(self):
        """To send an update needs no power; to take more work does."""
        bench, job = Bench(on_loss="finish"), training()
        bench.see(job, WELL, 12.0)
        bench.see(job, UNPLUGGED, 13.0, 15.0)
        job.trained(KEY, update(), 16.0)
        bench.see(job, UNPLUGGED, 17.0, 40.0, 60.0)
        assert bench.owner.unwilling is Condition.NOT_CHARGING
        assert bench.owner.words

    def test_of_a_new_round_is_not_lost_to_a_moment(self):
        """It was accepted when all was well, whatever became of the work before."""
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        bench.see(job, UNPLUGGED, 13.0, 15.0)
        assert job.paused
        bench.see(job, WELL, 16.0, 40.0)
        ask(job, 2, now=41.0)
        assert bench.see(job, UNPLUGGED, 42.0) == []


class TestLooks:
    def test_are_more_frequent_at_work(self):
        """A device at rest looks now and then, so that presence tells when it is willing again."""
        bench = Bench()
        assert bench.owner.next_deadline(idle()) == 0.0
        bench.see(idle(), WELL, 5.0)
        assert bench.owner.next_deadline(idle()) == 5.0 + LOOK_IDLE_S
        assert bench.owner.next_deadline(training()) == 5.0 + LOOK_AT_WORK_S

    def test_do_not_pile_up(self):
        """While one is under way, none is due."""
        bench = Bench()
        bench.owner.tick(idle(), 0.0)
        bench.owner.tick(idle(), 1.0)
        assert bench.book.asked == 1
        assert bench.owner.next_deadline(idle()) is None

    def test_come_in_time_for_what_time_decides(self):
        """An idle device whose preferences are met again does not wait for the next look to count the seconds."""
        bench = Bench()
        bench.see(idle(), UNPLUGGED, 0.0)
        bench.see(idle(), WELL, 1.0)
        assert bench.owner.next_deadline(idle()) == 11.0

    @pytest.mark.parametrize("make", [idle, downloading, training, uploading])
    @given(plugged=st.lists(st.booleans(), max_size=30), gap_s=st.sampled_from([0.0, 0.1, 1.0, 7.0]))
    def test_are_due_in_the_future(self, make, plugged, gap_s):
        """However the facts change: a moment that has passed keeps no loop busy."""
        bench, job, now = Bench(), make(), 21.0
        for online in plugged:
            now += gap_s
            bench.see(job, facts(external_power=online), now)
            due = bench.owner.next_deadline(job)
            assert due is not None and due > now

    def test_come_when_what_ends_by_the_clock_does(self):
        """A quarter of an hour of quiet is over on its minute, and not at the next look that is due anyway."""
        bench = Bench(quiet_hours=("12:00-12:15",), local=NOON.replace(minute=14, second=50))
        bench.see(idle(), WELL, 5.0)
        assert bench.owner.unwilling is Condition.QUIET_HOURS
        assert bench.owner.next_deadline(idle()) == 15.0

    def test_leave_words_that_change_with_the_conditions_only(self):
        """What they find is written to a card: not a line for every degree."""
        bench = Bench(max_temperature=60.0)
        for degrees, now in ((70.0, 0.0), (71.0, 1.0)):
            bench.see(idle(), facts(temperature_c=degrees), now)
        assert len(bench.owner.words) == 1
        assert "70" in bench.owner.words[0]
