"""A clock that only its owner advances: the order of events, and alarms that are moved."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.simulator.fleet.virtual_clock import Timer, VirtualClock


@given(st.lists(st.sampled_from((0.0, 1.0, 2.5))))
def test_things_are_done_in_the_order_of_their_time(delays):
    agenda = VirtualClock(10.0)
    done: list[tuple[float, int]] = []
    for number, delay_s in enumerate(delays):
        agenda.after(delay_s, partial(done.append, (10.0 + delay_s, number)))
    while agenda.next_at() is not None:
        agenda.run_next()
        assert agenda.now == done[-1][0]
    assert done == sorted(done)
    assert (agenda.done, len(agenda)) == (len(delays), 0)


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 9.0)), min_size=1))
def test_an_alarm_rings_by_the_earliest_deadline_it_was_set_for(deadlines):
    agenda, rung = VirtualClock(0.0), []
    alarm = Timer(agenda, lambda: rung.append(agenda.now))
    for deadline in deadlines:
        alarm.set(deadline)
    while agenda.next_at() is not None:
        agenda.run_next()
    assert rung == sorted(deadline for deadline in deadlines if deadline is not None)[:1]


def test_an_alarm_can_be_set_again_when_it_rings():
    agenda, rung = VirtualClock(0.0), []

    def wake() -> None:
        rung.append(agenda.now)
        alarm.set(agenda.now + 2.0 if len(rung) < 3 else None)

    alarm = Timer(agenda, wake)
    alarm.set(1.0)
    while agenda.next_at() is not None:
        agenda.run_next()
    assert rung == [1.0, 3.0, 5.0]
