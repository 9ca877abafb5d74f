"""The schedules of the suite are complete."""

from __future__ import annotations

from tests.faults.scene import NAMES
from tests.faults.schedules import Victim, draw
from tests.faults.watch import Happening

DEVICES = NAMES[:3]


def test_the_schedules_of_the_suite_strike_everything_at_every_moment():
    """The first forty strike each victim and each moment, and have both kinds of rounds."""
    schedules = [draw(seed, DEVICES) for seed in range(40)]
    strikes = [strike for schedule in schedules for strike in schedule.strikes]
    assert {strike.victim for strike in strikes} == set(Victim)
    assert {strike.after for strike in strikes} == {None, *Happening}
    assert {schedule.hasty for schedule in schedules} == {True, False}
    struck = {(strike.after, strike.victim) for strike in strikes}
    assert {(moment, Victim.COORDINATOR) for moment in Happening} <= struck
