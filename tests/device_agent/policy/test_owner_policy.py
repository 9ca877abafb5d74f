"""The owner's policy: admission modes, look-ups of facts, the present work, and clearance of updates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.job_effects import ContinueTraining, EndJob, PauseTraining
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    OwnerPaused,
    OwnerResumed,
    UpdateRestored,
    UpdateTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.policy.admission_mode import NEVER_S, AdmissionMode, decide, parse_admission_mode
from fedpatch.device_agent.policy.check_times import CHECK_AT_WORK_S, CHECK_IDLE_S, FRESH_S
from fedpatch.device_agent.policy.objections import Objection
from fedpatch.device_agent.policy.usage import Usage, UsageFile
from fedpatch.device_agent.policy.usage_notes import NOTE_BYTES
from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire.messages import Failed, Offer
from fedpatch.shared.wire.reason_codes import Condition, FailReason
from tests.device_agent.jobs import KEY, REQUEST, ask, downloading, here, replies, training, uploading
from tests.device_agent.owners import NOON, WELL, Bench, Pocketbook, facts, owner_of, wants
from tests.support.specs import TASK, update

UNPLUGGED = facts(external_power=False)
METERED = facts(metered=True)
PAUSED = facts(paused=True)


def idle() -> Job:
    return Job(max_blob_bytes=10_000)


class TestOffer:
    def test_waits_for_fresh_facts(self):
        bench = Bench()
        assert bench.consider(0.0) is None
        assert bench.consider(0.5) is None
        assert bench.book.asked == 1
        bench.see(idle(), WELL, 0.6)
        assert bench.consider(0.7) == AdmissionDecision(True)
        assert bench.consider(0.7 + FRESH_S + 0.1) is None
        assert bench.book.asked == 2

    def test_is_declined_with_the_condition_and_a_time(self):
        bench = Bench()
        bench.see(idle(), UNPLUGGED, 0.0)
        verdict = bench.consider(0.1)
        assert verdict is not None
        assert (verdict.accept, verdict.condition) == (False, Condition.NOT_CHARGING)
        assert verdict.retry_after_s > 0.0

    def test_asks_for_no_facts_where_every_request_is_declined(self):
        bench = Bench("never")
        bench.see(idle(), UNPLUGGED, 0.0)
        verdict = bench.consider(5.0)
        assert verdict is not None and verdict.accept is False
        assert bench.owner.next_deadline(idle()) is None
        assert bench.book.asked == 0

    @pytest.mark.parametrize("admission", ["always", "file:PATH", "preferences"])
    def test_pause_declines_in_every_mode(self, admission, tmp_path):
        order, pause = tmp_path / "order", tmp_path / "pause"
        order.write_text("accept\n")
        bench = Bench(admission.replace("PATH", str(order)), is_paused=pause.exists)
        bench.see(idle(), WELL, 0.0)
        accepted = bench.consider(0.1)
        pause.touch()
        bench.see(idle(), PAUSED, 10.0)
        declined = bench.consider(10.1)
        assert accepted is not None and accepted.accept
        assert declined is not None and declined.condition is Condition.PAUSED

    @pytest.mark.parametrize("admission", ["always", "preferences"])
    def test_pause_stops_the_training_in_every_mode(self, admission):
        bench, job = Bench(admission), training()
        assert bench.see(job, WELL, 0.0) == []
        assert bench.see(job, PAUSED, 10.0, 13.0) == [PauseTraining()]
        assert bench.see(job, WELL, 20.0, 60.0)[0] == ContinueTraining()

    def test_end_of_a_pause_counts_at_once(self):
        """An owner who resumes has not to wait for `return_after_s`."""
        bench = Bench(return_after_s=86_400.0)
        bench.see(idle(), PAUSED, 0.0)
        assert bench.owner.willing is False
        bench.see(idle(), WELL, 20.0)
        assert bench.owner.willing is True
        assert bench.consider(20.0) == AdmissionDecision(True)

    def test_other_preferences_do_not_count_with_always(self):
        bench = Bench("always")
        bench.see(idle(), UNPLUGGED, 0.0)
        verdict = bench.consider(0.1)
        assert verdict is not None and verdict.accept
        assert (bench.owner.unwilling, bench.owner.willing) == (None, True)

    def test_counts_what_was_spent_today(self):
        bench = Bench(max_rounds_per_day=1)
        bench.owner.meter.begins_round()
        bench.see(idle(), WELL, 10.1)
        verdict = bench.consider(10.2)
        assert verdict is not None and verdict.condition is Condition.ROUNDS_SPENT


class TestWorkInHand:
    def test_pauses_and_goes_on(self):
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        assert bench.see(job, UNPLUGGED, 13.0, 14.0, 15.0) == [PauseTraining()]
        assert bench.owner.unwilling is Condition.NOT_CHARGING
        assert bench.see(job, WELL, 16.0, 25.0) == []
        assert bench.see(job, WELL, 26.0)[0] == ContinueTraining()
        assert bench.owner.unwilling is None

    def test_is_given_up_after_the_longest_pause(self):
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        bench.see(job, UNPLUGGED, 13.0, 15.0)
        assert bench.see(job, UNPLUGGED, 74.0) == []
        effects = bench.see(job, UNPLUGGED, 75.0)
        assert replies(effects) == [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)]
        assert isinstance(effects[-1], EndJob)

    @pytest.mark.parametrize("on_loss", ["finish", "abandon"])
    def test_ends_as_its_owner_configured(self, on_loss):
        bench, job = Bench(on_loss=on_loss), training()
        bench.see(job, WELL, 12.0)
        sent = replies(bench.see(job, UNPLUGGED, 13.0, 15.0))
        assert sent == ([] if on_loss == "finish" else [Failed(FailReason.UNWILLING, Condition.NOT_CHARGING)])

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
        """Training uses no network, and sending hardly any power; a pause by the owner always counts."""
        bench, job = Bench(), make()
        bench.see(job, WELL, 21.0)
        bench.see(job, found, 22.0, 24.0)
        assert job.paused is pauses

    def test_is_noted_as_it_goes(self):
        """A power cut in every round gives no second allowance; pauses do not count as training."""
        bench, job = Bench(), training()
        bench.owner.meter.begins_round()
        bench.owner.meter.moved(500)
        bench.owner.tick(job, 10.0)
        assert bench.book.today == Usage(1, 500, 0.0)
        job.handle(OwnerPaused(), 20.0)
        bench.owner.tick(job, 40.0)
        assert bench.book.today == Usage(1, 500, 30.0)
        job.handle(OwnerResumed(), 100.0)
        bench.owner.tick(job, 100.0)
        bench.owner.tick(idle(), 110.0)
        assert bench.book.today == Usage(1, 500, 40.0)
        bench.owner.tick(idle(), 200.0)
        assert bench.book.today == Usage(1, 500, 40.0)

    def test_traffic_of_a_long_download_is_noted_before_its_end(self):
        """A device that loses its power during each download has not the allowance of the day each time."""
        bench, job = Bench(), downloading()
        bench.owner.meter.moved(NOTE_BYTES - 1)
        bench.owner.tick(job, 10.0)
        assert bench.book.today == Usage()
        bench.owner.meter.moved(1)
        bench.owner.tick(job, 11.0)
        bench.owner.tick(job, 12.0)
        assert bench.book.today == bench.owner.spent_today(12.0) == Usage(0, NOTE_BYTES)

    def test_minutes_of_a_long_training_are_noted_before_its_end(self):
        """A device that loses its power during each training has not the minutes of the day each time."""
        bench, job = Bench(), training()
        for now in range(10, 3611):
            bench.owner.tick(job, float(now))
        assert 3300.0 <= bench.book.today.training_s <= 3600.0
        assert bench.owner.spent_today(3610.0) == Usage(0, 0, 3600.0)

    def test_minutes_before_midnight_do_not_count_on_the_next_day(self, tmp_path):
        began = datetime(2026, 5, 4, 23, 0, tzinfo=UTC)
        clock = [began]
        account = UsageFile(tmp_path, lambda: clock[0])
        owner, job = owner_of(usage=account), training()
        for now in range(10, 4811, 10):
            clock[0] = began + timedelta(seconds=now - 10)
            owner.tick(job, float(now))
        assert 1200.0 <= owner.spent_today(4810.0).training_s <= 1500.0

    def test_is_noted_when_the_agent_ends(self):
        bench = Bench()
        bench.owner.tick(training(), 10.0)
        bench.owner.stop(30.0)
        assert bench.book.today == Usage(0, 0, 20.0)

    def test_finished_work_does_not_make_the_device_willing(self):
        bench, job = Bench(on_loss="finish"), training()
        bench.see(job, WELL, 12.0)
        bench.see(job, UNPLUGGED, 13.0, 15.0)
        job.handle(UpdateTrained(KEY, update()), 16.0)
        bench.see(job, UNPLUGGED, 17.0, 40.0, 60.0)
        assert bench.owner.unwilling is Condition.NOT_CHARGING
        assert bench.owner.words

    def test_of_a_new_round_is_not_lost_to_a_moment(self):
        bench, job = Bench(), training()
        bench.see(job, WELL, 12.0)
        bench.see(job, UNPLUGGED, 13.0, 15.0)
        assert job.paused
        bench.see(job, WELL, 16.0, 40.0)
        ask(job, 2, now=41.0)
        assert bench.see(job, UNPLUGGED, 42.0) == []


class TestLooks:
    def test_are_more_frequent_at_work(self):
        """An idle device also looks at intervals, so that presence shows when it is willing again."""
        bench = Bench()
        assert bench.owner.next_deadline(idle()) == 0.0
        bench.see(idle(), WELL, 5.0)
        assert bench.owner.next_deadline(idle()) == 5.0 + CHECK_IDLE_S
        assert bench.owner.next_deadline(training()) == 5.0 + CHECK_AT_WORK_S

    def test_do_not_pile_up(self):
        bench = Bench()
        bench.owner.tick(idle(), 0.0)
        bench.owner.tick(idle(), 1.0)
        assert bench.book.asked == 1
        assert bench.owner.next_deadline(idle()) is None

    def test_come_in_time_for_what_time_decides(self):
        """If an idle device's preferences are met again, the next look is when they have held for long enough."""
        bench = Bench()
        bench.see(idle(), UNPLUGGED, 0.0)
        bench.see(idle(), WELL, 1.0)
        assert bench.owner.next_deadline(idle()) == 11.0

    @pytest.mark.parametrize("make", [idle, downloading, training, uploading])
    @given(plugged=st.lists(st.booleans(), max_size=30), gap_s=st.sampled_from([0.0, 0.1, 1.0, 7.0]))
    def test_are_due_in_the_future(self, make, plugged, gap_s):
        bench, job, now = Bench(), make(), 21.0
        for online in plugged:
            now += gap_s
            bench.see(job, facts(external_power=online), now)
            due = bench.owner.next_deadline(job)
            assert due is not None and due > now

    def test_come_when_what_ends_by_the_clock_does(self):
        """Quiet hours of 15 minutes end on the minute, and not at the next regular look."""
        bench = Bench(quiet_hours=("12:00-12:15",), local=NOON.replace(minute=14, second=50))
        bench.see(idle(), WELL, 5.0)
        assert bench.owner.unwilling is Condition.QUIET_HOURS
        assert bench.owner.next_deadline(idle()) == 15.0

    def test_leave_words_that_change_with_the_conditions_only(self):
        bench = Bench(max_temperature=60.0)
        for degrees, now in ((70.0, 0.0), (71.0, 1.0)):
            bench.see(idle(), facts(temperature_c=degrees), now)
        assert len(bench.owner.words) == 1
        assert "70" in bench.owner.words[0]

    def test_have_new_words_where_the_same_condition_has_another_reason(self):
        """Quiet hours that cannot be checked become quiet hours once the clock is set."""
        bench = Bench(quiet_hours=("00:00-24:00",))
        bench.see(idle(), facts(clock_set=False), 0.0)
        assert "the clock is not set" in bench.owner.words[0]
        bench.see(idle(), facts(clock_set=True), 1.0)
        assert bench.owner.words[0].startswith("quiet hours")

    @pytest.mark.parametrize(("limit", "words"), [(65.0, ("it has 70 °C, it may have 60 °C",)), (None, ())])
    def test_have_the_words_of_reloaded_preferences(self, limit, words):
        """To begin again, the device must be 5 °C below its limit."""
        bench = Bench(max_temperature=50.0, return_after_s=0.0)
        bench.see(idle(), facts(temperature_c=70.0), 0.0)
        bench.owner.use(wants(max_temperature=limit, return_after_s=0.0))
        bench.see(idle(), facts(temperature_c=70.0), 1.0, 2.0)
        assert bench.owner.words == words


def asking(resumed: bool) -> Job:
    """A job whose update is ready and awaits clearance, after training or after a restart."""
    job = Job(max_blob_bytes=10_000, ask_to_send=True)
    if resumed:
        job.handle(UpdateRestored(KEY, update(), REQUEST), 20.0)
    else:
        ask(job)
        here(job, range(3), 11.0)
        job.handle(UpdateTrained(KEY, update()), 20.0)
    assert job.awaits_clearance
    return job


@pytest.mark.parametrize("resumed", [False, True])
def test_an_update_waits_until_the_link_was_looked_at(resumed):
    bench, job = Bench(), asking(resumed)
    asked = bench.book.asked
    bench.owner.tick(job, 21.0)
    assert bench.book.asked == asked + 1
    assert job.tick(21.0) == []
    assert replies(bench.see(job, WELL, 21.1)) == [Offer(update())]


@pytest.mark.parametrize("resumed", [False, True])
def test_an_update_is_not_sent_over_a_link_that_is_metered(resumed):
    bench, job = Bench(), asking(resumed)
    assert replies(bench.see(job, METERED, 21.0, 22.0, 23.0, 24.0)) == []
    assert job.paused
    assert replies(bench.see(job, WELL, 25.0, 36.0)) == [Offer(update())]


def test_an_update_is_sent_once_a_moment_is_over():
    bench, job = Bench(), Job(max_blob_bytes=10_000, ask_to_send=True)
    ask(job)
    here(job, range(3), 11.0)
    bench.see(job, WELL, 19.0)
    job.handle(UpdateTrained(KEY, update()), 20.0)
    assert replies(bench.see(job, METERED, 21.0)) == []
    assert replies(bench.see(job, WELL, 22.0)) == [Offer(update())]


@pytest.mark.parametrize(
    ("on_loss", "answer"),
    [("abandon", Failed(FailReason.UNWILLING, Condition.METERED)), ("finish", Offer(update()))],
)
def test_update_is_dropped_or_finished_by_the_setting_on_loss(on_loss, answer):
    bench, job = Bench(on_loss=on_loss), asking(resumed=False)
    assert replies(bench.see(job, METERED, 21.0, 23.0)) == [answer]


def test_an_update_is_finished_after_a_loss_in_training_too():
    """The loss was judged during training: it is not reported a second time when the update is ready."""
    bench, job = Bench(on_loss="finish"), Job(max_blob_bytes=10_000, ask_to_send=True)
    ask(job)
    here(job, range(3), 11.0)
    bench.see(job, UNPLUGGED, 13.0, 16.0)
    job.handle(UpdateTrained(KEY, update()), 20.0)
    assert replies(bench.see(job, METERED, 21.0)) == [Offer(update())]


def test_facts_are_looked_up_for_others_where_the_order_needs_none():
    book = Pocketbook()
    owner, job = owner_of(book, "never", look_anyway=True), training()
    owner.tick(job, 12.0)
    assert book.asked == 1
    assert owner.update_facts(UNPLUGGED, job, [TASK], 13.0) == owner.update_facts(UNPLUGGED, job, [TASK], 100.0) == []
    assert (owner.facts, owner.unwilling, owner.willing) == (UNPLUGGED, None, False)
    assert owner.next_deadline(job) == 100.0 + CHECK_IDLE_S


FILE = parse_admission_mode("file:/etc/fedpatch/order")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("preferences", AdmissionMode(always=False, follows_preferences=True)),
        ("always", AdmissionMode(always=True)),
        ("never", AdmissionMode(always=False)),
        ("file:/etc/fedpatch/order", AdmissionMode(always=False, path="/etc/fedpatch/order")),
        ("file:order", AdmissionMode(always=False, path="order")),
    ],
)
def test_orders_are_four_words(text, order):
    assert parse_admission_mode(text) == order


@pytest.mark.parametrize("text", ["", "Always", "file", "file:", "maybe"])
def test_other_words_are_refused(text):
    with pytest.raises(UsageError, match="preferences, always, never or file:PATH"):
        parse_admission_mode(text)


@pytest.mark.parametrize(
    ("order", "text", "verdict"),
    [
        ("always", None, AdmissionDecision(True)),
        ("never", "accept", AdmissionDecision(False, "its owner set admission to never", retry_after_s=NEVER_S)),
        ("file:/order", "accept\n", AdmissionDecision(True)),
        ("file:/order", "  accept  \ndecline", AdmissionDecision(True)),
        ("file:/order", "accept while at home", AdmissionDecision(True)),
        ("file:/order", "decline on battery", AdmissionDecision(False, "on battery")),
        ("file:/order", "decline: on battery\n", AdmissionDecision(False, "on battery")),
        ("file:/order", "decline", AdmissionDecision(False, "its owner's file says decline")),
        ("file:/order", None, AdmissionDecision(False, "its owner's file cannot be read")),
    ],
)
def test_order_decides_by_itself_or_by_the_first_word_of_its_file(order, text, verdict):
    assert decide(parse_admission_mode(order), text) == verdict


OBJECTIONS = (
    Objection(Condition.OTHER_SSID, "the WiFi network 'neighbours' is not among ssids", 600.0),
    Objection(Condition.TOO_HOT, "it has 81 °C, it may have 70 °C", 120.0),
)


def test_preferences_decline_with_the_most_lasting_objection():
    verdict = decide(parse_admission_mode("preferences"), None, OBJECTIONS)
    assert verdict == AdmissionDecision(False, "other ssid, too hot", Condition.OTHER_SSID, 600.0)
    assert decide(parse_admission_mode("preferences"), None, ()) == AdmissionDecision(True)


@pytest.mark.parametrize(("text", "accept"), [("always", True), ("never", False), ("file:/order", True)])
def test_any_other_order_overrules_the_preferences(text, accept):
    assert decide(parse_admission_mode(text), "accept", OBJECTIONS).accept is accept


@given(st.text())
def test_any_other_file_declines(text):
    first = (text.splitlines() or [""])[0].split()
    verdict = decide(FILE, text)
    assert verdict.accept == (first[:1] == ["accept"])
    assert verdict.accept or verdict.why
