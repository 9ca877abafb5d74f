"""The message that watchers get: of bounded size, true, and as good as the snapshot for the picture."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.observability.snapshot import DeviceLine, Others, Snapshot, snapshot_of, status_of
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.run_records import PhaseSeconds, RoundRecord
from fedpatch.shared.wire.codec import MAX_MESSAGE_BYTES, decode, encode, from_plain, to_plain
from fedpatch.shared.wire.messages import CoordinatorState, Envelope
from fedpatch.shared.wire.run_status import MAX_DEVICES, MAX_EARLIER, MAX_ROUNDS, DeviceStatus, RunStatus, StateCount
from tests.coordinator.observability.test_live_view import WAITING, collecting, fleet, record, text_of
from tests.shared.arbitrary_messages import of_message

TEXTS = st.text(max_size=200)
ACCURACIES = st.none() | st.floats()
COUNTS = st.integers(0, 10**6)
REASONS = st.dictionaries(TEXTS, st.integers(1, 9), max_size=20)
RECORDS = st.builds(
    RoundRecord,
    round=COUNTS,
    outcome=st.sampled_from(["aggregated", "failed"]),
    cohort=COUNTS,
    accepted=COUNTS,
    declined=COUNTS,
    reported=COUNTS,
    user_accuracy=ACCURACIES,
    user_accuracy_min=ACCURACIES,
    user_accuracy_after=ACCURACIES,
    phase_seconds=st.builds(PhaseSeconds, train=st.floats(0, 1e12)),
    bytes_down=COUNTS,
    bytes_up=COUNTS,
    decline_reasons=REASONS,
    failures=REASONS,
    refused=REASONS,
    late=COUNTS,
)
LINES = st.builds(DeviceLine, TEXTS, st.sampled_from(State), TEXTS, st.floats(0, 1))


def passed_on(snapshot: Snapshot) -> Snapshot:
    """What a watcher makes of it."""
    told = decode(encode(Envelope(status_of(snapshot), run=snapshot.run, round=snapshot.round)))
    assert isinstance(told.body, RunStatus)
    return snapshot_of(told, told.body)


@settings(max_examples=40)
@given(
    st.lists(LINES, max_size=120).map(tuple),
    st.lists(RECORDS, max_size=12).map(tuple),
    REASONS,
    ACCURACIES,
    st.none() | st.floats(0, 1e12),
)
def test_any_run_fits_the_wire_and_no_device_is_lost(devices, records, unwilling, accuracy, eta_s):
    """Whatever words and numbers there are: the limits hold, and as many devices are told of in each state as there are."""
    snapshot = replace(WAITING, devices=devices, records=records, unwilling=unwilling)
    seen = passed_on(replace(snapshot, user_accuracy=accuracy, eta_s=eta_s))
    assert seen.cohort == len(devices)
    for state in State:
        told = sum(one.state is state for one in seen.devices)
        told += sum(one.count for one in seen.others if one.state is state)
        assert told == sum(one.state is state for one in devices)


def test_a_coordinator_that_tells_no_bytes_of_the_open_round_is_understood():
    """One of an earlier version: all the rest is shown."""
    told = to_plain(status_of(collecting(*fleet(3), bytes_down=5, bytes_up=7)))
    del told["round_bytes_down"], told["round_bytes_up"], told["missing"]
    seen = snapshot_of(Envelope(CoordinatorState(True, "")), from_plain(told, RunStatus))
    assert (seen.cohort, seen.bytes_down, seen.bytes_up) == (3, 0, 0)


def test_a_small_fleet_is_seen_as_the_coordinator_sees_it():
    """Up to the limits, the picture is the same to the last character."""
    bytes_so_far = {"bytes_down": 1_200_000, "bytes_up": 300_000}
    snapshot = collecting(*fleet(MAX_DEVICES), eta_s=12.0, user_accuracy=0.5, unwilling={"too_hot": 2}, **bytes_so_far)
    assert text_of(passed_on(snapshot)) == text_of(snapshot)
    assert passed_on(WAITING) == WAITING


def test_of_a_large_fleet_the_slowest_are_told_and_the_others_counted():
    """The picture is the same, for it names only the slowest too."""
    reported = [DeviceLine(f"fast-{index}", State.REPORTED, "", 0.0) for index in range(900)]
    hot = [DeviceLine(f"hot-{index}", State.DECLINED, "too_hot", 0.0) for index in range(60)]
    slow = [DeviceLine(f"slow-{index}", State.TRAINING, "", index / 40) for index in range(40)]
    snapshot = collecting(*reported, *hot, *slow)
    seen = passed_on(snapshot)
    assert len(seen.devices) == MAX_DEVICES
    assert {one.device for one in slow} <= {one.device for one in seen.devices}
    assert set(seen.others) == {Others(State.REPORTED, "", 900), Others(State.DECLINED, "too_hot", 50)}
    assert text_of(seen) == text_of(snapshot)


def test_of_a_long_run_the_last_rounds_are_told_and_the_curve_before_them():
    """Bytes are those of the whole run."""
    snapshot = replace(WAITING, records=tuple(record(number, number / 1000) for number in range(1, 101)))
    status = status_of(snapshot)
    assert [one.round for one in status.rounds] == list(range(101 - MAX_ROUNDS, 101))
    last_before = 100 - MAX_ROUNDS
    assert list(status.earlier) == [n / 1000 for n in range(last_before + 1 - MAX_EARLIER, last_before + 1)]
    assert (status.bytes_down, status.bytes_up) == (100 * 54_000, 100 * 51_000)
    assert text_of(passed_on(snapshot)) == text_of(snapshot)


@settings(max_examples=30)
@given(of_message(RunStatus))
def test_any_message_within_the_limits_can_be_drawn(status):
    """Also one that no coordinator of ours would send."""
    assert text_of(snapshot_of(decode(encode(Envelope(status, run="run-1", round=3))), status))


def test_the_largest_message_is_no_larger_than_messages_may_be():
    """A thousand devices, each with a long name and a long reason of its own, after rounds in which all went wrong."""
    reasons = {f"{index:>100}": index for index in range(100)}
    bad = record(1, decline_reasons=reasons, failures=reasons, refused=reasons)
    devices = [
        DeviceLine(f"{index:>32}", state, f"{index:>99}"[::-1], 0.123) for index, state in enumerate(list(State) * 120)
    ]
    snapshot = collecting(*devices, records=(bad,) * 100, unwilling=reasons)
    assert len(encode(Envelope(status_of(snapshot), run="r" * 64, task="t" * 64))) <= MAX_MESSAGE_BYTES
    assert passed_on(snapshot).cohort == len(devices)


def test_the_usual_message_is_small():
    """A thousand devices that are at work, and a long run behind them: some kilobytes."""
    snapshot = collecting(*fleet(1000), records=tuple(record(number) for number in range(200)))
    assert len(encode(Envelope(status_of(snapshot), run="r" * 22, task="digits"))) < 8_000


def test_a_state_that_only_a_newer_coordinator_knows_is_left_out():
    """The rest is shown."""
    status = status_of(collecting(*fleet(9)))
    newer = replace(
        status,
        devices=(*status.devices, DeviceStatus("pi", "dreaming", "", 0.0)),
        others=(StateCount("dreaming", "", 3),),
    )
    assert snapshot_of(Envelope(newer), newer) == snapshot_of(Envelope(status), status)
