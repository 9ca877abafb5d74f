"""Willingness: what holds whatever the facts do, and whenever somebody looks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.policy.hysteresis import ConditionLost, ConditionRestored, OnLoss, PauseExpired
from tests.device_agent.policy.test_hysteresis import BATTERY, HOT, NONE, willing

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
    """Never two of a kind in a row, whatever the facts do; a pause is over at most once, between the two."""
    device, now, told = willing(**terms), 0.0, []
    for step_s, missed, working in steps:
        now += step_s
        change = device.observe(missed, now, working=working)
        told += [change] if change is not None else []
        assert device.willing == (device.unwilling is None)
    kinds = [type(change) for change in told]
    turns = [kind for kind in kinds if kind is not PauseExpired]
    assert turns == [ConditionLost, ConditionRestored] * (len(turns) // 2) + [ConditionLost] * (len(turns) % 2)
    for change, following in pairwise(told):
        assert not isinstance(following, PauseExpired) or (
            isinstance(change, ConditionLost) and change.action is OnLoss.PAUSE
        )


SHARES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=40)


@given(SHARES, st.lists(st.floats(1.01, 20.0), min_size=40, max_size=40), st.floats(0.1, 3.0))
def test_a_loss_shorter_than_the_patience_never_stops_work(losses, returns, patience_s):
    """However often it happens, if all was met for as long as the patience before it."""
    device, now = willing(loss_after_s=patience_s), 10.0
    for loss, met in zip(losses, returns, strict=False):
        assert device.observe(BATTERY, now, working=True) is None
        now += loss * patience_s
        assert device.observe(NONE, now, working=True) is None
        now += met * patience_s


@given(SHARES, SHARES, st.floats(0.1, 3.0))
def test_a_fact_that_keeps_flapping_stops_work(losses, returns, patience_s):
    """Once the losses together have lasted as long as the patience, and not before."""
    device, now, lost_s = willing(loss_after_s=patience_s), 10.0, 0.0
    for loss, met in zip(losses, returns, strict=False):
        change = device.observe(BATTERY, now, working=True)
        if abs(lost_s - patience_s) < 1e-6:
            return  # too close for rounding
        assert isinstance(change, ConditionLost) == (lost_s > patience_s)
        if change is not None:
            return
        now += loss * patience_s
        lost_s += loss * patience_s
        assert device.observe(NONE, now, working=True) is None
        now += met * patience_s


@given(STEPS, TERMS)
def test_nothing_is_accepted_before_all_was_met_for_long_enough(steps, terms):
    """Since the device was last seen to miss something while it was unwilling."""
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
def test_a_loss_is_never_told_later_than_its_deadline(steps, terms):
    """Who looks at every deadline hears of it at the latest `loss_after_s` after it began, to the instant."""
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
