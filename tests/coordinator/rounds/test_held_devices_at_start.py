"""Held devices do not count before the first round, in a new run and in a resumed one."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from fedpatch.coordinator.observability.status_message import status_message
from fedpatch.coordinator.rounds.device_wait import SETTLE_S
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import DevicesRevoked, HoldsChanged, ModelPublished, RunStarted, TimePassed
from tests.coordinator.engines import current, end_of, join
from tests.support.specs import model, run_spec

FIVE = ("a", "b", "c", "d", "e")


def waiting(
    devices: int = 5,
    last_run: Collection[str] = (),
    held: Collection[str] = (),
    revoked: Collection[str] = (),
    resumed: bool = False,
) -> Engine:
    """Return an engine that waits for the devices of its first round; nothing is there yet."""
    records = [RoundRecord(1, "aggregated", 5, 4, 0, 5)] if resumed else []
    made = Engine(
        run_spec(devices=devices, quorum=0.8, wait_s=120.0, epoch=1 + resumed),
        records=records,
        jitter=random.Random(1),
        holds=dict.fromkeys(held, DRAINED),
        seen=last_run if resumed else (),
        last_run=last_run,
    )
    made.handle(RunStarted(), 0.0)
    made.handle(DevicesRevoked(frozenset(revoked)), 0.0)
    return made


def begins_at(made: Engine) -> float:
    """Let the time pass until the first round begins; return that time."""
    now = 0.0
    while made.open is None and made.stopped is None:
        now = made.next_deadline() or now
        made.handle(TimePassed(), now)
    assert made.stopped is None
    return now


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("how", ["held", "revoked"])
@pytest.mark.parametrize("last_run", [(), FIVE], ids=["first run", "later run"])
def test_held_device_of_five_is_not_waited_for(resumed, how, last_run):
    held, revoked = (["e"], []) if how == "held" else ([], ["e"])
    made = waiting(last_run=last_run, resumed=resumed, held=held, revoked=revoked)
    assert made.required_devices() == 4
    join(made, "abcd", 1.0)
    assert begins_at(made) <= 1.0 + SETTLE_S
    assert made.open is not None
    assert made.open.round.policy.target == 4


def test_device_that_is_drained_while_the_run_waits_for_it_lets_it_begin_at_once():
    made = waiting(last_run=FIVE)
    join(made, "abcd", 1.0)
    made.handle(TimePassed(), 50.0)
    assert (made.open, made.required_devices()) == (None, 5)
    made.handle(HoldsChanged({"e": DRAINED}), 50.0)
    assert made.open is not None


def test_missing_device_of_the_last_run_is_waited_for_although_another_one_is_held():
    made = waiting(last_run=FIVE, held=["e"])
    join(made, "abc", 1.0)
    made.handle(TimePassed(), 60.0)
    assert (made.open, made.present, made.required_devices()) == (None, 3, 4)


def test_device_that_took_the_place_of_a_held_one_is_waited_for():
    made = waiting(last_run=[*FIVE, "f"], held=["e"])
    join(made, "abcd", 1.0)
    made.handle(TimePassed(), 60.0)
    assert (made.open, made.required_devices()) == (None, 5)
    join(made, "f", 61.0)
    assert made.open is not None


def test_new_device_in_the_place_of_a_held_one_takes_part_if_it_comes_with_the_others():
    made = waiting(last_run=FIVE, held=["e"])
    join(made, "abcd", 1.0)
    assert made.open is None
    join(made, "g", 1.0 + SETTLE_S / 2)
    made.handle(ModelPublished(model()), 5.0)
    assert "g" in current(made).round.participants


def test_devices_held_long_ago_do_not_shrink_a_fleet_without_them():
    made = waiting(last_run=FIVE, held=[f"old-{number}" for number in range(20)])
    join(made, "abcd", 1.0)
    made.handle(TimePassed(), 60.0)
    assert (made.open, made.required_devices()) == (None, 5)


@pytest.mark.parametrize("many", [3, 20])
def test_held_devices_of_a_new_fleet_are_a_minority_of_it_at_most(many):
    made = waiting(held=[f"old-{number}" for number in range(many)])
    join(made, "ab", 1.0)
    made.handle(TimePassed(), 60.0)
    assert (made.open, made.required_devices()) == (None, 3)


@pytest.mark.parametrize("devices", [1, 2])
def test_device_held_in_a_fleet_of_two_at_most_takes_no_place_in_it(devices):
    made = waiting(devices=devices, held=["old"])
    assert made.required_devices() == devices


def test_waiting_line_has_names_and_the_time_that_is_left():
    made = waiting(last_run=FIVE, held=["e"])
    join(made, "abc", 1.0)
    status = status_message(made, 20.0).status
    assert (status.present, status.wanted, status.missing, status.waits_s) == (3, 4, "d (offline)", 100.0)
    join(made, "d", 21.0)
    begins_at(made)
    assert not status_message(made, 30.0).status.waits_s


def test_run_without_enough_devices_ends_with_the_held_one_and_the_reason():
    made = waiting(last_run=FIVE, revoked=["e"])
    made.handle(HoldsChanged({"d": QUARANTINED}), 0.0)
    join(made, "ab", 1.0)
    detail = end_of(made.handle(TimePassed(), 120.0)).detail
    assert detail.startswith(
        "2 of 3 devices came within 120 s; 2 of those that are not there are held back, as d: quarantined"
    )
    assert "missing: c (offline)" in detail
