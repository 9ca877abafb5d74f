"""The counting of devices: each device is in one group of the quorum rule, whatever happened to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.device_count import DeviceCount

NAMES = [f"pi-{number}" for number in range(8)]
FACTS = st.fixed_dictionaries({"able": st.booleans(), "out": st.booleans(), "invitable": st.booleans()})
STEPS = st.one_of(
    st.tuples(st.just("note"), st.sampled_from(NAMES), FACTS),
    st.tuples(st.just("hold"), st.sets(st.sampled_from(NAMES)), st.none()),
    st.tuples(st.just("absent"), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES))),
    st.tuples(st.just("give_up"), st.none(), st.none()),
    st.tuples(st.just("forget"), st.sampled_from(NAMES), st.none()),
)


def play(count: DeviceCount, steps: list[tuple]) -> None:
    for kind, first, second in steps:
        match kind:
            case "note":
                # A device that can be invited has the task, and takes part.
                invitable = second["invitable"] and second["able"] and not second["out"]
                count.note(first, able=second["able"], out=second["out"], invitable=invitable)
            case "hold":
                count.hold(first)
                for device in first:
                    count.invitable.discard(device)
            case "absent":
                count.absent, count.unsteady = dict.fromkeys(first, 1), second
            case "give_up":
                count.give_up()
            case "forget":
                count.forget(first)


@given(st.integers(1, 10), st.sets(st.sampled_from(NAMES)), st.lists(STEPS, max_size=30))
def test_counted_devices_are_never_more_than_the_fleet_nor_fewer_than_none(least, last_run, steps):
    count = DeviceCount(least)
    count.expect(last_run)
    play(count, steps)
    standing = count.standing
    assert 0 <= standing.counted <= standing.fleet - standing.left
    assert 0 <= count.wanted <= least


@given(st.integers(1, 10), st.lists(STEPS, max_size=30))
def test_held_left_and_missing_devices_are_different_able_devices(least, steps):
    count = DeviceCount(least)
    play(count, steps)
    groups = [count.held, count.left, count.missing]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert set().union(*groups) <= count.able


def test_device_that_returns_after_a_vain_wait_counts_again_and_stays_counted_when_it_leaves():
    count = DeviceCount(least=4)
    for device in NAMES[:4]:
        count.note(device, able=True, out=False, invitable=device != "pi-0")
    count.give_up()
    assert (count.standing.missing, count.standing.counted) == (1, 3)
    count.note("pi-0", able=True, out=False, invitable=True)
    count.note("pi-0", able=True, out=False, invitable=False)
    assert (count.standing.missing, count.standing.counted) == (0, 4)


@pytest.mark.parametrize(("seen", "unseen"), [(4, 0), (3, 1), (2, 2)])
def test_devices_that_the_run_has_never_seen_are_missing_after_a_vain_wait_as_many_as_they_were_then(seen, unseen):
    count = DeviceCount(least=4)
    for device in NAMES[:seen]:
        count.note(device, able=True, out=False, invitable=True)
    assert count.standing.missing == 0
    count.give_up()
    assert count.standing.missing == unseen
    count.forget("pi-0")
    assert count.standing.missing == unseen


def test_held_device_of_the_last_run_that_was_never_seen_reduces_the_devices_to_wait_for():
    count = DeviceCount(least=3)
    count.expect({"pi-0", "pi-1", "pi-2"})
    count.hold({"pi-0", "stranger"})
    assert count.wanted == 2
