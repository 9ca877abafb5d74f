"""Hysteresis of the owner's conditions: examples and properties."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.policy.loss_and_return import (
    Change,
    ConditionLost,
    ConditionRestored,
    Hysteresis,
    PauseExpired,
)
from fedpatch.device_agent.policy.objections import Objection
from fedpatch.device_agent.policy.unmet_preferences import unmet_preferences
from fedpatch.device_agent.policy.usage import NOTHING
from fedpatch.device_agent.policy.work_on_loss import OnLoss
from fedpatch.shared.wire.reason_codes import Condition
from tests.device_agent.owners import easy, facts
from tests.device_agent.policy.test_preference_evaluation import NOON

BATTERY = (Objection(Condition.NOT_CHARGING, "it runs on its battery", 600.0),)
NIGHT = (Objection(Condition.QUIET_HOURS, "quiet hours, until Sun 07:00", 28_800.0, exact=True),)
HOT = (Objection(Condition.TOO_HOT, "it has 81 °C", 120.0),)
NONE: tuple[Objection, ...] = ()


def willing(**settings) -> Hysteresis:
    """Hysteresis of a device that meets all conditions at time 0."""
    found = Hysteresis(easy(**settings))
    assert found.observe(NONE, 0.0, working=False) is None
    return found


def play(device: Hysteresis, story: dict[float, tuple[Objection, ...]], *, working: bool = True) -> list[Change]:
    """The changes that are reported for these objections at these times."""
    changes = (device.observe(objections, now, working=working) for now, objections in story.items())
    return [change for change in changes if change is not None]


def test_a_moments_loss_stops_nothing():
    device = willing()
    assert play(device, {10.0: BATTERY, 11.9: BATTERY, 12.0: NONE, 14.0: BATTERY, 15.9: BATTERY}) == []
    assert device.willing and device.unwilling is None


def test_a_plug_that_flaps_is_missed():
    """The good moments are too short to count, and the bad ones add up to two seconds, with a look every second."""
    device = willing(loss_after_s=2.0)
    story = {10.0 + second: NONE if second % 2 else BATTERY for second in range(8)}
    assert play(device, story) == [ConditionLost(BATTERY, OnLoss.PAUSE)]
    assert device.unwilling is Condition.NOT_CHARGING
    device = willing(loss_after_s=2.0)
    play(device, {10.0: BATTERY, 11.5: NONE, 12.0: BATTERY})
    assert device.next_deadline() == 12.5


def test_a_loss_after_a_return_has_the_whole_patience_again():
    device = willing(loss_after_s=2.0, return_after_s=1.0)
    flapping = {10.0: BATTERY, 11.5: NONE, 12.0: BATTERY, 12.5: BATTERY, 13.0: NONE, 14.0: NONE}
    assert [type(change) for change in play(device, flapping)] == [ConditionLost, ConditionRestored]
    assert play(device, {14.5: BATTERY, 16.4: BATTERY, 16.5: NONE}) == []


def test_lasting_loss_is_reported_once():
    device = willing(on_loss="finish")
    story = {10.0: BATTERY, 11.0: BATTERY, 12.0: BATTERY + HOT, 13.0: BATTERY}
    assert play(device, story) == [ConditionLost(BATTERY + HOT, OnLoss.FINISH)]
    assert (device.willing, device.unwilling) == (False, Condition.NOT_CHARGING)


def test_two_losses_that_take_turns_are_one():
    """There is no moment at which all the owner's preferences are met."""
    assert play(willing(), {10.0: BATTERY, 11.0: HOT, 12.0: BATTERY}) == [ConditionLost(BATTERY, OnLoss.PAUSE)]


def test_condition_missed_at_the_start_counts_at_once():
    """There was no moment at which the condition was met; an agent with an update to upload gets the owner's action at once."""
    device = Hysteresis(easy(on_loss="abandon"))
    assert device.observe(BATTERY, 0.0, working=True) == ConditionLost(BATTERY, OnLoss.ABANDON)


def test_work_goes_on_when_all_was_met_for_long_enough():
    device = willing(return_after_s=30.0)
    lost = {10.0: BATTERY, 12.0: BATTERY}
    short = {20.0: NONE, 49.0: NONE, 49.5: BATTERY, 60.0: NONE, 89.9: NONE}
    assert play(device, {**lost, **short}) == [ConditionLost(BATTERY, OnLoss.PAUSE)]
    assert play(device, {90.0: NONE, 91.0: NONE, 200.0: NONE}) == [ConditionRestored(78.0)]
    assert device.willing


@pytest.mark.parametrize("action", ["finish", "pause", "abandon"])
def test_the_owner_chooses_what_becomes_of_work(action):
    changes = play(willing(on_loss=action), {10.0: BATTERY, 12.0: BATTERY, 1000.0: BATTERY})
    assert changes[0] == ConditionLost(BATTERY, OnLoss(action))
    assert changes[1:] == ([PauseExpired(BATTERY)] if action == "pause" else [])


def test_a_pause_has_an_end():
    device = willing(pause_limit_s=100.0)
    assert play(device, {10.0: BATTERY, 12.0: BATTERY, 90.0: NONE, 111.9: NONE}) == [
        ConditionLost(BATTERY, OnLoss.PAUSE)
    ]
    assert play(device, {112.0: NONE, 113.0: NONE}) == [PauseExpired(BATTERY)]
    assert play(device, {120.0: NONE}) == [ConditionRestored(108.0)]


def test_pause_without_work_never_expires():
    device = willing(pause_limit_s=100.0)
    assert len(play(device, {10.0: BATTERY, 12.0: BATTERY})) == 1
    assert play(device, {50.0: BATTERY, 200.0: BATTERY}, working=False) == []


def test_a_pause_that_must_outlast_its_limit_is_not_begun():
    assert play(willing(), {10.0: NIGHT, 12.0: NIGHT}) == [ConditionLost(NIGHT, OnLoss.ABANDON)]
    assert play(willing(pause_limit_s=28_800.0), {10.0: NIGHT, 12.0: NIGHT}) == [ConditionLost(NIGHT, OnLoss.PAUSE)]
    assert play(willing(on_loss="finish"), {10.0: NIGHT, 12.0: NIGHT}) == [ConditionLost(NIGHT, OnLoss.FINISH)]


def test_an_offer_is_declined_for_what_is_missed_at_that_moment():
    """The tolerance of two seconds is only for work that has begun."""
    device = willing()
    device.observe(BATTERY, 10.0, working=False)
    (changes,) = device.answer(BATTERY, 10.0)
    assert device.willing and changes.condition is Condition.NOT_CHARGING
    assert device.answer(NONE, 10.5) == NONE


def test_a_moments_loss_costs_no_more_than_a_moment():
    """A device that stays willing does not report the plug's return, so a wait of ten minutes would be wasted."""
    device = willing(loss_after_s=2.0)
    device.observe(BATTERY, 10.0, working=False)
    assert [one.retry_after_s for one in device.answer(BATTERY, 10.0)] == [3.0]
    device.observe(NONE, 12.0, working=False)
    assert device.willing and device.answer(NONE, 13.0) == NONE
    device.observe(BATTERY, 20.0, working=False)
    device.observe(BATTERY, 22.0, working=False)
    assert device.answer(BATTERY, 22.0) == BATTERY  # from here on presence reports the end of the loss


def test_retry_is_short_only_for_brief_objections():
    device = willing(loss_after_s=2.0)
    device.observe(NIGHT + BATTERY, 10.0, working=False)
    unfit = (Objection(Condition.TASK_NOT_ALLOWED, "task x is not among allowed_tasks", 3600.0),)
    brief = (Objection(Condition.BUSY, "it has much to do", 0.5),)
    changes = device.answer(BATTERY + NIGHT + unfit + brief, 10.0)
    assert [(one.condition, one.retry_after_s) for one in changes] == [
        (Condition.QUIET_HOURS, 28_800.0),
        (Condition.TASK_NOT_ALLOWED, 3600.0),
        (Condition.NOT_CHARGING, 3.0),
        (Condition.BUSY, 0.5),
    ]


def test_an_offer_is_declined_while_what_came_back_must_still_hold():
    device = willing(return_after_s=30.0)
    play(device, {10.0: BATTERY, 12.0: BATTERY, 20.0: NONE})
    (changes,) = device.answer(NONE, 45.0)
    assert (changes.condition, changes.retry_after_s) == (Condition.NOT_CHARGING, 5.0)
    play(device, {50.0: NONE})
    assert device.answer(NONE, 50.0) == NONE


def test_condition_with_an_exact_end_is_over_at_its_end():
    """The coordinator has that exact time; all other missed conditions must be met for `return_after_s` as well."""
    device = willing(return_after_s=30.0)
    assert play(device, {10.0: NIGHT, 12.0: NIGHT, 8000.0: NIGHT, 8010.0: NONE}, working=False)[1:] == [
        ConditionRestored(7998.0)
    ]
    device = willing(return_after_s=30.0)
    assert (
        len(play(device, {10.0: NIGHT, 12.0: NIGHT, 8000.0: NIGHT + HOT, 8005.0: NIGHT, 8010.0: NONE}, working=False))
        == 1
    )
    (changes,) = device.answer(NONE, 8010.0)
    assert changes.retry_after_s == 25.0 and device.next_deadline() == 8035.0
    assert play(device, {8034.0: NONE, 8035.0: NONE}, working=False) == [ConditionRestored(8023.0)]


def test_next_deadline_is_the_first_exact_end():
    """The earliest of several ends, counted from its report; a condition without an exact end sets no deadline."""
    device = willing(on_loss="finish")
    play(device, {10.0: HOT, 12.0: HOT})
    assert device.next_deadline() is None
    midnight = (Objection(Condition.ROUNDS_SPENT, "24 rounds today", 7200.0, exact=True),)
    play(device, {20.0: NIGHT + midnight + HOT})
    assert device.next_deadline() == 20.0 + 7200.0
    play(device, {7220.0: NIGHT})
    assert device.next_deadline() == 7220.0 + 28_800.0


def test_presence_keeps_its_word_while_it_is_true():
    device = willing()
    changes = []
    for now, missed in enumerate([HOT, HOT, HOT, BATTERY + HOT, HOT, BATTERY, BATTERY + HOT, NONE]):
        device.observe(missed, 10.0 + now, working=False)
        changes.append(device.unwilling)
    assert changes == [None, None, *[Condition.TOO_HOT] * 3, *[Condition.NOT_CHARGING] * 3]


def test_facts_are_judged_more_strictly_while_unwilling():
    """A battery that fluctuates around its limit does not make the device fluctuate, too."""
    device = willing(min_battery=30, return_after_s=10.0)
    changes = []
    for now in range(600):
        percent = 30.5 if now % 40 < 20 else 29.5
        missed = unmet_preferences(device.preferences, facts(battery_percent=percent), NOTHING, local=NOON)
        changes.append(device.observe(missed, float(now), working=False))
    assert [type(change) for change in changes if change is not None] == [ConditionLost]


@pytest.mark.parametrize("limit_s", [0.0, 0.5, 3.0])
def test_loss_is_reported_at_the_next_deadline(limit_s):
    device = willing(loss_after_s=limit_s)
    changes = device.observe(BATTERY, 10.0, working=True)
    if limit_s:
        assert changes is None and device.next_deadline() == 10.0 + limit_s
        changes = device.observe(BATTERY, 10.0 + limit_s, working=True)
    assert isinstance(changes, ConditionLost)


def test_the_next_deadline_is_that_of_the_pause_or_of_the_return():
    device = willing(return_after_s=30.0, pause_limit_s=100.0)
    assert device.next_deadline() is None
    seen = []
    for now, missed in {10.0: BATTERY, 12.0: BATTERY, 20.0: NONE, 90.0: BATTERY, 95.0: NONE, 112.0: NONE}.items():
        device.observe(missed, now, working=True)
        seen.append(device.next_deadline())
    assert seen == [12.0, 112.0, 50.0, 112.0, 112.0, 125.0]


STEPS = st.lists(
    st.tuples(st.floats(0.01, 20.0), st.sampled_from([NONE, NONE, BATTERY, HOT, BATTERY + HOT]), st.booleans()),
    max_size=40,
)
TERMS = st.fixed_dictionaries(
    {
        "on_loss": st.sampled_from(["finish", "pause", "abandon"]),
        "loss_after_s": st.floats(0.0, 3.0),
        "return_after_s": st.floats(0.0, 40.0),
        "pause_limit_s": st.floats(0.0, 60.0),
    }
)


@given(STEPS, TERMS)
def test_losses_and_returns_take_turns(steps, terms):
    """For any facts, losses and returns alternate; between a loss and a return, a pause expires at most once."""
    device, now, changes = willing(**terms), 0.0, []
    for step_s, missed, working in steps:
        now += step_s
        change = device.observe(missed, now, working=working)
        changes += [change] if change is not None else []
        assert device.willing == (device.unwilling is None)
    kinds = [type(change) for change in changes]
    turns = [kind for kind in kinds if kind is not PauseExpired]
    assert turns == [ConditionLost, ConditionRestored] * (len(turns) // 2) + [ConditionLost] * (len(turns) % 2)
    for change, following in pairwise(changes):
        assert not isinstance(following, PauseExpired) or (
            isinstance(change, ConditionLost) and change.action is OnLoss.PAUSE
        )


SHARES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=40)


@given(SHARES, st.lists(st.floats(1.01, 20.0), min_size=40, max_size=40), st.floats(0.1, 3.0))
def test_a_loss_shorter_than_the_patience_never_stops_work(losses, returns, patience_s):
    """Any number of short losses, if all was met before each for as long as the patience."""
    device, now = willing(loss_after_s=patience_s), 10.0
    for loss, met in zip(losses, returns, strict=False):
        assert device.observe(BATTERY, now, working=True) is None
        now += loss * patience_s
        assert device.observe(NONE, now, working=True) is None
        now += met * patience_s


@given(SHARES, SHARES, st.floats(0.1, 3.0))
def test_a_fact_that_keeps_flapping_stops_work(losses, returns, patience_s):
    """Work stops once the losses together have lasted as long as the patience, and not before."""
    device, now, lost_s = willing(loss_after_s=patience_s), 10.0, 0.0
    for loss, met in zip(losses, returns, strict=False):
        change = device.observe(BATTERY, now, working=True)
        if abs(lost_s - patience_s) < 1e-6:
            return  # too close: rounding decides
        assert isinstance(change, ConditionLost) == (lost_s > patience_s)
        if change is not None:
            return
        now += loss * patience_s
        lost_s += loss * patience_s
        assert device.observe(NONE, now, working=True) is None
        now += met * patience_s


@given(STEPS, TERMS)
def test_nothing_is_accepted_before_all_was_met_for_long_enough(steps, terms):
    """The time counts from the last missed condition that was observed while the device was unwilling."""
    device, now, missed_at = willing(**terms), 0.0, 0.0
    for step_s, missed, working in steps:
        now += step_s
        was_willing = device.willing
        device.observe(missed, now, working=working)
        if missed:
            missed_at = now
        accepts = not device.answer(missed, now)
        assert not (accepts and missed)
        assert not accepts or was_willing or now - missed_at >= terms["return_after_s"] - 1e-9


@given(STEPS, TERMS)
def test_loss_is_never_reported_later_than_its_deadline(steps, terms):
    """With a check at every deadline, a loss is reported exactly `loss_after_s` after it began, at the latest."""
    device, now = willing(**terms), 0.0
    since: float | None = None
    for step_s, missed, _ in steps:
        now += step_s
        deadline = device.next_deadline()
        if device.willing and since is not None:
            assert deadline is not None and deadline <= since + terms["loss_after_s"]
            if deadline < now:
                assert isinstance(device.observe(BATTERY, deadline, working=True), ConditionLost)
        device.observe(missed, now, working=True)
        since = None if not missed or not device.willing else now if since is None else since
