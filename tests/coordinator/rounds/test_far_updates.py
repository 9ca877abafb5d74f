"""Which devices are far from the others, round after round: not an honest one that is far now and then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.far_updates import MAX_FAR, UNUSUAL_ROUNDS, far_rounds, unusual_devices
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import Aggregated, DevicePresence, ModelPublished
from fedpatch.shared.wire.features import EVALUATE_FEATURE
from fedpatch.shared.wire.messages import Accept, Evaluation, Failed
from fedpatch.shared.wire.reason_codes import FailReason
from tests.coordinator.engines import asking, engine, join, report_all, send
from tests.support.specs import model, there

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
    equal = dict.fromkeys(reversed(many), 7)
    assert list(far_rounds(equal, {}, 0.0, ())) == sorted(many)[:MAX_FAR]


def test_unusual_devices_are_in_the_order_of_their_names():
    names = ["pi-3", "pi-1", "pi-2"]
    assert unusual_devices(dict.fromkeys(names, 9), dict.fromkeys(names, 0.9)) == sorted(names)


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


def play_round(made: Engine, now: float, pulls: dict[str, float], median: float | None) -> RoundRecord:
    """Complete a round in which all devices report; return its record. A median of None: all updates count whole."""
    report_all(made, "ab", now)
    made.handle(Aggregated(pulls=pulls, pull_quantiles={} if median is None else {"p50": median}), now)
    record = made.records[-1]
    made.handle(ModelPublished(model()), now)
    return record


def test_records_of_a_run_count_rounds_in_a_row_in_which_a_device_is_far():
    made = asking("ab", rounds=9)
    assert play_round(made, 1.0, {"a": 0.9}, 0.1).far == {"a": 1}
    assert play_round(made, 2.0, {"a": 0.9}, 0.1).far == {"a": 2}
    assert play_round(made, 3.0, {"a": 0.9}, 0.9).far == {}
    assert play_round(made, 4.0, {}, None).far == {}


def test_update_is_far_where_the_median_is_not_known():
    assert play_round(asking("ab"), 1.0, {"a": 0.9}, None).far == {"a": 1}


def test_failed_round_changes_no_count_of_a_far_device():
    made = asking("ab", rounds=9)
    play_round(made, 1.0, {"a": 0.9}, 0.1)
    for device in "ab":
        send(made, device, Failed(FailReason.TRAINING), 2.0, 2)
    assert (made.records[-1].outcome, made.records[-1].far) == ("failed", {"a": 1})


def test_resumed_run_goes_on_with_the_counts_of_its_last_record():
    records = [RoundRecord(number, "aggregated", 2, 2, 0, 2, far={"a": number, "b": 1}) for number in (1, 2)]
    made = engine(records, devices=2, rounds=9)
    join(made, "ab")
    made.handle(ModelPublished(model()), 0.0)
    assert play_round(made, 1.0, {"a": 0.9}, 0.1).far == {"a": 3}


def test_evaluate_round_changes_no_count_of_a_far_device():
    made = engine(devices=2, rounds=9, evaluate_every=1)
    for device in "ab":
        made.handle(DevicePresence(device, replace(there(), features=(EVALUATE_FEATURE,))), 0.0)
    made.handle(ModelPublished(model()), 0.0)
    assert play_round(made, 1.0, {"a": 0.9}, 0.1).far == {"a": 1}
    for device in "ab":
        send(made, device, Accept(10), 2.0, 2)
        send(made, device, Evaluation(model().digest, 0.5, 10, 1.0), 2.0, 2)
    assert (made.records[-1].outcome, made.records[-1].far) == ("evaluated", {"a": 1})
