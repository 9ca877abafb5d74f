"""The round: its transition table, its laws under any events at any times, and what illegal driving does."""

from __future__ import annotations

import copy
import math
from dataclasses import astuple, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.participant_transitions import TABLE, Event, Phase, State
from fedpatch.coordinator.rounds.round_phases import Round, RoundPolicy
from fedpatch.shared.errors import IllegalTransition

# A row per state, a column per event: the next state, "-" where the event changes nothing.
GRID = """
           accept    decline   train     offer      report    fail    vanish  restart
invited    accepted  declined  training  uploading  reported  failed  lost    -
accepted   -         declined  training  uploading  reported  failed  lost    invited
training   -         -         -         uploading  reported  failed  lost    invited
uploading  -         -         -         -          reported  failed  lost    invited
lost       accepted  declined  training  uploading  reported  failed  -       invited
reported   -         -         -         -          -         -       -       -
declined   -         -         -         -          -         -       -       -
failed     -         -         -         -          -         -       -       -
late       -         -         -         -          -         -       -       -
"""
EVENTS = [Event(word) for word in GRID.split("\n")[1].split()]
EXPECTED = {
    (State(row.split()[0]), event): State(row.split()[0] if word == "-" else word)
    for row in GRID.strip().split("\n")[1:]
    for event, word in zip(EVENTS, row.split()[1:], strict=True)
}
AT_WORK = (State.INVITED, State.ACCEPTED, State.TRAINING, State.UPLOADING, State.LOST)
DEVICES = ("a", "b", "c", "d")

POLICY = RoundPolicy(
    target=4, min_cohort=1, quorum=1.0, recruit_deadline_s=10.0, deadline_s=100.0, grace_s=20.0, rejoin_s=15.0
)


@st.composite
def policies(draw) -> RoundPolicy:
    """Any policy that the settings allow, with times that collide."""
    times = st.sampled_from((0.0, 0.1, 5.0, 10.0, 33.3))
    return RoundPolicy(
        target=draw(st.integers(1, 5)),
        min_cohort=draw(st.integers(1, 3)),
        quorum=draw(st.sampled_from((0.01, 0.5, 0.8, 1.0))),
        recruit_deadline_s=draw(times),
        deadline_s=draw(times) + 0.5,
        grace_s=draw(times),
        rejoin_s=draw(times),
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.0, 0.1, 1.7, 5.0, 20.0)),
        st.sampled_from((*DEVICES, "stranger", None)),
        st.sampled_from(Event),
    ),
    max_size=25,
)


def step(current: Round, now: float, device: str | None, event: Event) -> None:
    """One event of a device, or without a device a tick."""
    if device is None:
        current.tick(now)
    else:
        current.handle(device, event, now)


def insides(current: Round) -> dict:
    return copy.deepcopy(vars(current))


def begun(now: float = 0.0, devices: tuple[str, ...] = DEVICES, policy: RoundPolicy = POLICY) -> Round:
    """A round with its invitations out."""
    current = Round(1, policy, now)
    current.begin(devices, now)
    return current


def collecting(phase: Phase) -> bool:
    """Whether the round still waits for devices."""
    return phase in (Phase.RECRUITING, Phase.COLLECTING)


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in State for e in Event], ids=str)
def test_each_event_in_each_state_leads_where_the_grid_says(state, event):
    current = begun(policy=RoundPolicy(9, 1, 0.2, 50.0, 100.0, 20.0, 15.0))
    current.participants["a"].state = state
    moved = current.handle("a", event, 1.0, "why")
    assert current.participants["a"].state is EXPECTED[state, event]
    assert moved == (EXPECTED[state, event] is not state)
    assert TABLE.get((state, event), state) is EXPECTED[state, event]


@given(policies(), STEPS)
def test_any_round_is_over_in_time(policy, steps):
    """Nothing is awaited after the deadline and the grace time."""
    current, now = begun(100.3, policy=policy), 100.3
    for wait_s, device, event in steps:
        now += wait_s
        step(current, now, device, event)
    current.tick(max(now, 100.3 + policy.deadline_s + policy.grace_s))
    assert not collecting(current.phase)
    assert not current.devices(*AT_WORK)


@given(policies(), STEPS)
def test_deadlines_lead_to_the_end(policy, steps):
    """Woken at `next_deadline` only, a round comes to its end, and each waking has an effect."""
    current, now = begun(100.3, policy=policy), 100.3
    for wait_s, device, event in steps:
        now += wait_s
        step(current, now, device, event)
    current.tick(now)
    while (deadline := current.next_deadline()) is not None:
        assert now < deadline <= 100.3 + policy.deadline_s + policy.grace_s
        now = deadline
        before = insides(current)
        current.tick(now)
        assert current.next_deadline() != deadline or insides(current) != before
    assert not collecting(current.phase)


@example(  # who was lost is back, at a time at which it could have been given up later
    replace(POLICY, deadline_s=0.5, rejoin_s=0.1), [(0.0, "a", Event.VANISH), (0.0, "a", Event.ACCEPT)], 0.5
)
@given(policies(), STEPS, st.floats(0, 1))
def test_nothing_happens_before_the_next_deadline(policy, steps, fraction):
    current, now = begun(policy=policy), 0.0
    for wait_s, device, event in steps:
        now += wait_s
        step(current, now, device, event)
        current.tick(now)
        before, deadline = insides(current), current.next_deadline()
        at = now + fraction * (now + 1000.0 if deadline is None else deadline - now)
        if deadline is None or at < deadline:
            current.tick(at)
            assert insides(current) == before


@given(policies(), STEPS)
def test_no_device_counts_twice(policy, steps):
    """A final state stays, and a closed round has its quorum."""
    current, now = begun(policy=policy), 0.0
    final: dict[str, State] = {}
    for wait_s, device, event in steps:
        now += wait_s
        was_over = not collecting(current.phase)
        before = insides(current)
        step(current, now, device, event)
        assert not was_over or insides(current) == before
        for name, participant in current.participants.items():
            assert final.setdefault(name, participant.state) is participant.state or final[name] in AT_WORK
            final[name] = participant.state
    if current.phase is Phase.AGGREGATING:
        assert len(current.devices(State.REPORTED)) >= max(policy.min_cohort, policy.quorum * policy.target - 1e-6, 1)
        assert current.quorum_s is not None


@given(policies(), STEPS)
def test_devices_are_counted_as_they_are(policy, steps):
    current, now = begun(policy=policy), 0.0
    for wait_s, device, event in steps:
        now += wait_s
        step(current, now, device, event)
        for state in State:
            there = sorted(name for name, one in current.participants.items() if one.state is state)
            assert (current.devices(state), current.count(state)) == (there, len(there))
        assert current.needed == max(1, policy.min_cohort, math.ceil(policy.quorum * policy.target - 1e-9))


@given(policies(), STEPS, st.floats(0, 50), st.booleans())
def test_phases_add_up_to_the_time_of_the_round(policy, steps, aggregate_s, finished):
    current, now = Round(1, policy, 7.0), 9.5
    current.begin(DEVICES, now)
    for wait_s, device, event in steps:
        if collecting(current.phase):
            now += wait_s
            step(current, now, device, event)
    if current.phase is Phase.AGGREGATING:
        now += aggregate_s
    if current.phase is Phase.AGGREGATING and finished:
        current.finish(now)
    elif not current.over:
        current.abandon(now, "interrupted")
    assert current.over
    parts = astuple(current.phase_seconds())
    assert math.isclose(sum(parts), current.elapsed_s(now), abs_tol=1e-6)
    assert min(parts) >= -1e-9
    assert parts[0] == 2.5


@given(policies(), STEPS)
def test_illegal_calls_raise_and_change_nothing(policy, steps):
    current, now = Round(1, policy, 0.0), 0.0
    with pytest.raises(IllegalTransition, match="selecting"):
        current.finish(0.0)
    current.begin(DEVICES, 0.0)
    for wait_s, device, event in [*steps, (1e9, None, Event.FAIL)]:
        now += wait_s
        step(current, now, device, event)
        before = insides(current)
        with pytest.raises(IllegalTransition, match="begin"):
            current.begin(DEVICES, now)
        if current.phase is not Phase.AGGREGATING:
            with pytest.raises(IllegalTransition, match="finish"):
                current.finish(now)
        if current.over:
            with pytest.raises(IllegalTransition, match="abandoned"):
                current.abandon(now, "again")
        assert insides(current) == before


def test_round_before_it_begins_ignores_events_and_time():
    current = Round(3, POLICY, 5.0)
    assert current.next_deadline() is None
    assert not current.handle("a", Event.ACCEPT, 6.0)
    current.tick(1e9)
    assert current.phase is Phase.SELECTING


def test_round_abandoned_before_it_begins_spent_its_time_on_selection():
    current = Round(3, POLICY, 5.0)
    current.abandon(8.0, "interrupted")
    assert (current.phase, current.failure) == (Phase.FAILED, "interrupted")
    assert sum(astuple(current.phase_seconds())) == 3.0
