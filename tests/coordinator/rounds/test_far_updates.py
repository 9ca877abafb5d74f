"""Which devices are far from the others, round after round: not an honest one that is far now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.far_updates import MAX_FAR, UNUSUAL_ROUNDS, far_rounds, unusual_devices

DEVICES = st.sampled_from(("pi-1", "pi-2", "pi-3"))
ROUNDS = st.lists(st.tuples(st.dictionaries(DEVICES, st.floats(0, 1)), st.floats(0, 1), st.sets(DEVICES)), max_size=20)


def test_device_that_is_far_in_each_of_its_rounds_becomes_unusual_after_five():
    far: dict[str, int] = {}
    for number in range(1, UNUSUAL_ROUNDS + 1):
        assert unusual_devices(far, {"pi-1": 0.9}) == []
        # It is not drawn into each round.
        far = far_rounds(far, {"pi-2": 0.3}, 0.0, {"pi-2"})
        far = far_rounds(far, {"pi-1": 0.9, "pi-2": 0.3}, 0.0, {"pi-1", "pi-2"})
        assert far == {"pi-1": number}
    assert unusual_devices(far, {"pi-1": 0.9}) == ["pi-1"]


def test_one_near_update_begins_the_count_anew():
    assert far_rounds({"pi-1": 9}, {"pi-1": 0.75}, 0.0, {"pi-1"}) == {}
    assert far_rounds({}, {"pi-1": 0.76}, 0.24, {"pi-1"}) == {"pi-1": 1}


def test_round_that_pulls_most_devices_makes_none_unusual():
    assert far_rounds({"pi-1": 9}, {"pi-1": 0.9, "pi-2": 0.8}, 0.25, {"pi-1", "pi-2"}) == {}


def test_record_names_the_devices_with_most_rounds_in_a_row():
    many = {f"pi-{number:03}": number for number in range(1, MAX_FAR + 6)}
    assert list(far_rounds(many, {}, 0.0, ())) == sorted(many)[5:]


@given(ROUNDS)
def test_count_is_that_of_the_last_far_updates_in_a_row_of_a_device(rounds):
    far: dict[str, int] = {}
    for pulls, median, reported in rounds:
        far = far_rounds(far, pulls, median, reported)
    for device in ("pi-1", "pi-2", "pi-3"):
        own = [
            median < 0.25 and pulls.get(device, 0.0) > 0.75
            for pulls, median, reported in rounds
            if device in reported or (median < 0.25 and pulls.get(device, 0.0) > 0.75)
        ]
        in_a_row = next((count for count, is_far in enumerate(reversed(own)) if not is_far), len(own))
        assert far.get(device, 0) == in_a_row


@pytest.mark.parametrize(
    ("rounds", "pull", "named"),
    [
        (UNUSUAL_ROUNDS - 1, 0.9, []),
        (UNUSUAL_ROUNDS, 0.9, ["pi-1"]),
        (1, 0.9999, []),
        (1, 0.99991, ["pi-1"]),
        (0, 0.99991, []),  # the others are pulled as far
    ],
)
def test_device_is_unusual_from_the_fifth_round_in_a_row_or_with_nearly_all_taken_away(rounds, pull, named):
    assert unusual_devices({"pi-1": rounds} if rounds else {}, {"pi-1": pull, "pi-2": 0.5}) == named


def test_device_without_an_update_in_this_round_is_not_unusual():
    assert unusual_devices({"pi-1": 9}, {}) == []
