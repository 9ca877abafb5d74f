"""The round: its transition table, its invariants under any events at any times, and single cases."""

from __future__ import annotations

import copy
import math
from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.participant_transitions import TABLE, ParticipantEvent, Phase, State
from fedpatch.coordinator.rounds.round_phases import Participant, Round, RoundPolicy
from fedpatch.shared.errors import IllegalTransition

# The next state for each state (row) and event (column); "-": the event changes nothing.
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
EVENTS = [ParticipantEvent(word) for word in GRID.split("\n")[1].split()]
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
    """Return any policy that the settings allow, with times that are often equal."""
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
        st.sampled_from(ParticipantEvent),
    ),
    max_size=25,
)


def step(current: Round, now: float, device: str | None, event: ParticipantEvent) -> None:
    """Handle an event of a device, or a tick if there is no device."""
    if device is None:
        current.tick(now)
    else:
        current.handle(device, event, now)


def insides(current: Round) -> dict:
    return copy.deepcopy(vars(current))


def begun(now: float = 0.0, devices: tuple[str, ...] = DEVICES, policy: RoundPolicy = POLICY) -> Round:
    """Return a round whose invitations are sent."""
    current = Round(1, policy, now)
    current.begin(devices, now)
    return current


def collecting(phase: Phase) -> bool:
    """Return whether the round still waits for devices."""
    return phase in (Phase.RECRUITING, Phase.COLLECTING)


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in State for e in ParticipantEvent], ids=str)
def test_each_event_in_each_state_leads_to_the_state_of_the_grid(state, event):
    current = begun(policy=RoundPolicy(9, 1, 0.2, 50.0, 100.0, 20.0, 15.0))
    current.participants["a"].state = state
    moved = current.handle("a", event, 1.0, "why")
    assert current.participants["a"].state is EXPECTED[state, event]
    assert moved == (EXPECTED[state, event] is not state)
    assert TABLE.get((state, event), state) is EXPECTED[state, event]


@given(policies(), STEPS)
def test_any_round_is_over_in_time(policy, steps):
    """After deadline plus grace period the round waits for no device."""
    current, now = begun(100.3, policy=policy), 100.3
    for wait_s, device, event in steps:
        now += wait_s
        step(current, now, device, event)
    current.tick(max(now, 100.3 + policy.deadline_s + policy.grace_s))
    assert not collecting(current.phase)
    assert not current.devices(*AT_WORK)


@given(policies(), STEPS)
def test_deadlines_lead_to_the_end(policy, steps):
    """A round that gets ticks only at `next_deadline` ends, and each tick has an effect."""
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


@example(  # a lost device is back before the time at which the round would have stopped waiting for it
    replace(POLICY, deadline_s=0.5, rejoin_s=0.1),
    [(0.0, "a", ParticipantEvent.VANISH), (0.0, "a", ParticipantEvent.ACCEPT)],
    0.5,
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
    """A final state does not change, and a closed round has its quorum."""
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
    for wait_s, device, event in [*steps, (1e9, None, ParticipantEvent.FAIL)]:
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
    assert not current.handle("a", ParticipantEvent.ACCEPT, 6.0)
    current.tick(1e9)
    assert current.phase is Phase.SELECTING


def test_round_abandoned_before_it_begins_spent_its_time_on_selection():
    current = Round(3, POLICY, 5.0)
    current.abandon(8.0, "interrupted")
    assert (current.phase, current.failure) == (Phase.FAILED, "interrupted")
    assert sum(astuple(current.phase_seconds())) == 3.0


QUORUM_POLICY = RoundPolicy(
    target=4, min_cohort=1, quorum=0.75, recruit_deadline_s=10.0, deadline_s=100.0, grace_s=20.0, rejoin_s=15.0
)


def begin(devices: str = "abcd", **changes: Any) -> Round:
    """Return a round at time 0 with a device per letter; it is meant for these devices unless `changes` has another target."""
    current = Round(1, replace(QUORUM_POLICY, **{"target": len(devices), **changes}), 0.0)
    current.begin(tuple(devices), 0.0)
    return current


def play(current: Round, now: float, *events: str) -> Round:
    """Handle events `device:event`; `*:event` is for all devices; after `device:event!` the device does not count."""
    for event in events:
        names, _, what = event.partition(":")
        for device in current.participants if names == "*" else names:
            current.handle(device, ParticipantEvent(what.rstrip("!")), now, leaves=what.endswith("!"))
    return current


def facts(current: Round) -> set[str]:
    """Return phase or failure, devices by state, needed updates, acceptances, next deadline and time of the quorum."""
    found = {current.failure or current.phase.value, f"needed={current.needed}", f"accepts={len(current.accepted())}"}
    found |= {f"next={current.next_deadline()}", f"quorum_s={current.quorum_s}"}
    return found | {f"{state.value}={''.join(current.devices(state))}" for state in State}


def case(name: str, script: str, devices: str = "abcd", **changes: Any) -> Any:
    """Return a test case with a script of steps `second event event = fact fact`; a step without events is a tick."""
    return pytest.param(script, devices, changes, id=name)


RECRUITING = [
    case(
        "ends when all have answered",
        "1 a:accept b:decline c:accept = recruiting; 2 d:decline = collecting declined=bd",
        quorum=0.5,
    ),
    case(
        "takes more than are wanted",
        "1 a:accept b:accept = recruiting; 2 c:accept d:accept = collecting needed=2 accepts=4",
        target=2,
        quorum=1.0,
    ),
    case("ends at its deadline", "1 a:accept = next=10.0; 10 = collecting late=bcd", quorum=0.25),
    case("ends at an earlier deadline of the round", "0 = next=5.0; 5 = too_few_accepted", deadline_s=5.0),
    case("fails without an answer", "10 = too_few_accepted"),
    case("fails with 1 of 2", "1 a:accept; 10 = too_few_accepted", min_cohort=2),
    case("fails with 3 of 4", "1 a:accept b:accept c:accept; 10 = too_few_accepted", min_cohort=4),
    case("fails at once when all decline", "1 a:decline b:decline = too_few_accepted", "ab"),
    case("fails with 1 of 10", "1 a:accept bcdefghij:decline = needed=8 too_few_accepted", "abcdefghij", quorum=0.8),
    case("waits for a vanished device", "1 a:accept b:vanish = recruiting; 2 b:restart b:accept = collecting", "ab"),
    case("takes a report", "1 a:report = recruiting; 10 = aggregating reported=a", "ab", quorum=0.5),
]
COLLECTING = [
    case("ends with the last report", "5 abc:report = collecting; 6 d:report = aggregating"),
    case(
        "gives the grace time after the quorum",
        "5 abc:report d:offer = needed=3 quorum_s=5.0 next=25.0; 24.9 = collecting; 25 = aggregating late=d",
    ),
    case("ends at the deadline though grace is left", "95 abc:report d:offer = next=100.0; 100 = aggregating"),
    case(
        "waits past the deadline for uploads that make the quorum",
        "90 ab:report c:offer d:train; 100 = collecting next=120.0; 110 c:report = aggregating",
    ),
    case("fails when those uploads do not come", "90 ab:report c:offer; 120 = quorum_missed"),
    case("fails when those uploads vanish", "90 ab:report c:offer; 100; 105 c:vanish = quorum_missed"),
    case("fails at the deadline without the quorum", "90 a:report b:offer = next=100.0; 100 = quorum_missed late=bcd"),
    case("fails when the quorum is out of reach", "5 a:fail = collecting; 6 b:fail = quorum_missed"),
    case(
        "needs the smallest cohort", "5 ab:report = quorum_s=None; 6 c:report = quorum_s=6.0", quorum=0.1, min_cohort=3
    ),
    case(
        "of more than are wanted ends after the first",
        "5 ca:report = collecting next=25.0; 25 = aggregating late=bd",
        target=2,
        quorum=1.0,
    ),
    case(
        "of more than are wanted survives failures",
        "5 a:fail b:vanish; 50; 60 cd:report = aggregating",
        target=2,
        quorum=1.0,
    ),
    case(
        "gives up a lost device",
        "5 a:vanish bcd:report = collecting next=20.0; 20 = aggregating failed=a",
        grace_s=90.0,
    ),
    case("takes back a lost device", "5 a:train a:vanish; 10 a:offer = uploading=a; 20 = uploading=a"),
    case("counts from the last absence", "5 a:vanish; 15 a:accept a:vanish; 29 a:vanish = lost=a; 30 = failed=a"),
    case(
        "begins again with a restarted device",
        "5 a:train a:restart = invited=a accepts=4 needed=3; 6 a:accept abcd:report = aggregating",
    ),
    case(
        "needs less without an offender",
        "1 a:train = needed=4; 2 d:fail! = needed=3 collecting; 3 abc:report = aggregating",
        quorum=0.8,
    ),
    case("needs a device that failed without offence", "2 d:fail = needed=4 quorum_missed", quorum=0.8),
    case("of two with an offender fails", "2 b:fail! = needed=2 quorum_missed", "ab", quorum=0.8),
    case(
        "replaces an offender by a device beyond the target",
        "2 e:fail! = needed=4; 2 d:fail! = needed=3",
        "abcde",
        target=4,
        quorum=1.0,
    ),
    case("counts an offender that has reported", "2 d:report; 3 d:fail! = needed=4 reported=d", quorum=0.8),
]


@pytest.mark.parametrize(("script", "devices", "changes"), RECRUITING)
def test_recruiting(script, devices, changes):
    follow(begin(devices, **changes), script)


@pytest.mark.parametrize(("script", "devices", "changes"), COLLECTING)
def test_collecting(script, devices, changes):
    follow(play(begin(devices, **changes), 1.0, "*:accept"), script)


def follow(current: Round, script: str) -> None:
    """Run each step of a script, and check its facts."""
    for step in script.split("; "):
        given, _, expected = step.partition(" = ")
        second, *events = given.split()
        play(current, float(second), *events) if events else current.tick(float(second))
        assert facts(current) >= set(expected.split()), step


def test_round_without_devices_fails_at_once():
    assert begin("").failure == "too_few_accepted"


@pytest.mark.parametrize(("quorum", "needed"), [(0.01, 1), (0.5, 2), (0.7, 3), (0.75, 3), (0.76, 4), (1.0, 4)])
def test_quorum_is_rounded_up(quorum, needed):
    assert begin(quorum=quorum).needed == needed


def test_phases_have_the_seconds_of_the_last_report():
    current = Round(1, replace(QUORUM_POLICY, target=2), 0.0)
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


def test_time_lost_by_a_restart_counts_for_the_interrupted_phase():
    current = play(begin("a"), 1.0, "a:accept")
    play(current, 2.0, "a:train")
    play(current, 5.0, "a:restart")
    play(current, 6.0, "a:accept")
    play(current, 7.0, "a:train")
    play(current, 9.0, "a:offer")
    play(current, 10.0, "a:report")
    seconds = current.phase_seconds()
    assert (seconds.recruit, seconds.download, seconds.train, seconds.upload) == (1.0, 1.0, 7.0, 1.0)


def test_remaining_time_stops_at_zero():
    current = begin()
    assert [current.remaining_s(now) for now in (0.0, 40.0, 100.0, 110.0)] == [100.0, 60.0, 0.0, 0.0]


def test_devices_that_trained_or_more_had_the_model():
    current = play(play(begin(), 1.0, "*:accept"), 5.0, "a:train", "b:offer", "c:report")
    assert len(current.had_model()) == 3


def test_interrupt_while_aggregating_keeps_the_times():
    current = play(play(begin(), 1.0, "*:accept"), 5.0, *(f"{device}:report" for device in "abcd"))
    current.abandon(8.0, "interrupted")
    assert current.phase_seconds().aggregate == 3.0


def test_reasons_of_a_state_are_counted():
    current = begin()
    for device, reason in (("a", "unwilling"), ("b", "unwilling"), ("c", "unknown_task")):
        current.handle(device, ParticipantEvent.DECLINE, 1.0, reason)
    assert current.reasons(State.DECLINED) == {"unwilling": 2, "unknown_task": 1}
    assert current.participants["d"] == Participant(since={State.INVITED: 0.0})


def test_masked_round_with_enough_updates_at_its_deadline_succeeds_although_a_group_still_shares():
    """A device of this group has lost its connection, or the coordinator was away."""
    current = begun(policy=replace(POLICY, quorum=0.5, unmask_s=30.0))
    for device in DEVICES:
        current.handle(device, ParticipantEvent.ACCEPT, 1.0)
    current.sharing = True
    for device in "ab":
        current.handle(device, ParticipantEvent.REPORT, 50.0)
    current.tick(99.9)
    assert (current.phase, current.quorum_s) == (Phase.COLLECTING, None)
    current.tick(100.0)
    assert (current.phase, current.quorum_s) == (Phase.UNMASKING, 100.0)


@pytest.mark.parametrize("reported", [False, True])
def test_device_with_the_update_of_an_earlier_round_has_accepted(reported):
    current = begin("ab")
    current.admit("c", 1.0, reported=reported)
    current.handle("a", ParticipantEvent.ACCEPT, 1.0)
    assert current.accepted() == ["a", "c"]


def test_reason_of_a_device_at_work_at_the_end_is_the_deadline_and_of_a_lost_one_the_loss():
    current = play(begin(), 1.0, "abcd:accept")
    current.handle("a", ParticipantEvent.VANISH, 90.0, "lost")
    current.tick(100.0)
    assert current.reasons(State.LATE) == {"lost": 1, "deadline": 3}
