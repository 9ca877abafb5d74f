"""The status message: built from an engine, of bounded size, and drawn the same by a watcher and the coordinator."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.observability.status_message import received_message, status_message
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.run_events import Aggregated, DevicePresence, ModelPublished
from fedpatch.shared.wire.codec import MAX_MESSAGE_BYTES, decode, encode, from_plain, to_plain
from fedpatch.shared.wire.messages import CoordinatorState, Envelope, Progress
from fedpatch.shared.wire.reason_codes import JobPhase
from fedpatch.shared.wire.run_status import MAX_DEVICES, MAX_EARLIER, MAX_ROUNDS, DeviceStatus, RunStatus, StateCount
from tests.coordinator.arbitrary_records import records
from tests.coordinator.engines import BLOB, accept, asking, current, engine, report_of, send
from tests.coordinator.observability.statuses import collecting, fleet, passed_on, record, text_of, waiting
from tests.shared.arbitrary_messages import of_message
from tests.support.examples import examples
from tests.support.specs import model, there


class TestStatusMessage:
    def test_between_rounds_counts_present_wanted_and_starting_devices(self):
        made = engine(devices=3)
        made.handle(DevicePresence("a", there()), 1.0)
        made.handle(DevicePresence("b", there(tasks=())), 1.0)
        status = status_message(made, 1.0).status
        assert (status.phase, status.present, status.wanted) == ("waiting", 1, 3)
        assert (status.devices, status.elapsed_s) == ((), 0)
        assert (status.starting, status.round_bytes_down, status.round_bytes_up) == (1, 0, 0)

    def test_open_round_has_states_progress_quorum_and_bytes(self):
        made = asking("abc", quorum=0.6)
        accept(made, "ab")
        send(made, "b", Progress(JobPhase.TRAINING, 1, 4))
        report_of(made, "c")
        status = status_message(made, 8.0).status
        assert [(device.device, device.state, device.progress) for device in status.devices] == [
            ("a", "accepted", 0.0),
            ("b", "training", 0.25),
            ("c", "reported", 0.0),
        ]
        assert (status.reported, status.needed, status.user_accuracy) == (1, 2, 0.5)
        assert (status.eta_s, status.elapsed_s) == (None, 8.0)
        assert (status.round_bytes_down, status.round_bytes_up) == (2 * model().size_bytes, len(BLOB))
        assert current(made).record("aggregated").bytes_up == status.round_bytes_up

    def test_expected_time_is_that_of_earlier_rounds(self):
        made = asking("a")
        report_of(made, "a", 12.0)
        assert status_message(made, 12.0).status.eta_s is None
        made.handle(Aggregated(), 20.0)
        made.handle(ModelPublished(model()), 20.0)
        assert [status_message(made, now).status.eta_s for now in (20.0, 25.0, 60.0)] == [12.0, 7.0, 0.0]


TEXTS = st.text(max_size=200)
ACCURACIES = st.none() | st.floats()
COUNTS = st.integers(0, 10**6)
REASONS = st.dictionaries(TEXTS, st.integers(1, 9), max_size=20)
RECORDS = records(words=TEXTS, counts=COUNTS, measures=ACCURACIES, seconds=st.floats(0, 1e12), reasons=REASONS)
DEVICES = st.builds(DeviceStatus, TEXTS, st.sampled_from(State), TEXTS, st.floats(0, 1))


class TestBounded:
    @examples(40)
    @given(
        st.lists(DEVICES, max_size=120),
        st.lists(RECORDS, max_size=12),
        REASONS,
        ACCURACIES,
        st.none() | st.floats(0, 1e12),
    )
    def test_any_run_fits_the_wire_and_each_device_is_counted_in_its_state(
        self, devices, records, unwilling, accuracy, eta_s
    ):
        message = waiting(*devices, records=records, unwilling=unwilling, user_accuracy=accuracy, eta_s=eta_s)
        status = passed_on(message).status
        assert status.cohort == len(devices)
        for state in State:
            counted = sum(device.state == state for device in status.devices)
            counted += sum(other.count for other in status.others if other.state == state)
            assert counted == sum(device.state is state for device in devices)

    def test_large_fleet_names_the_slowest_devices_and_counts_the_others(self):
        reported = [DeviceStatus(f"fast-{index}", State.REPORTED, "", 0.0) for index in range(900)]
        hot = [DeviceStatus(f"hot-{index}", State.DECLINED, "too_hot", 0.0) for index in range(60)]
        slow = [DeviceStatus(f"slow-{index}", State.TRAINING, "", index / 40) for index in range(40)]
        message = collecting(*reported, *hot, *slow)
        status = message.status
        assert len(status.devices) == MAX_DEVICES
        assert {device.device for device in slow} <= {device.device for device in status.devices}
        assert set(status.others) == {StateCount(State.REPORTED, "", 900), StateCount(State.DECLINED, "too_hot", 50)}
        text = "\n".join(text_of(message))
        assert "training 40  reported 900  declined 60 (too_hot 60)" in text and "and 992 more" in text

    def test_long_run_has_its_last_rounds_and_the_curve_before_them(self):
        message = waiting(records=[record(number, number / 1000) for number in range(1, 101)])
        status = message.status
        assert [one.round for one in status.rounds] == list(range(101 - MAX_ROUNDS, 101))
        last_before = 100 - MAX_ROUNDS
        assert list(status.earlier) == [n / 1000 for n in range(last_before + 1 - MAX_EARLIER, last_before + 1)]
        assert (status.bytes_down, status.bytes_up) == (100 * 54_000, 100 * 51_000)
        assert text_of(passed_on(message)) == text_of(message)

    def test_largest_message_is_within_the_limit_of_messages(self):
        reasons = {f"{index:>100}": index for index in range(100)}
        bad = record(1, decline_reasons=reasons, failures=reasons, refused=reasons)
        devices = [
            DeviceStatus(f"{index:>32}", state, f"{index:>99}"[::-1], 0.123)
            for index, state in enumerate(list(State) * 120)
        ]
        message = collecting(*devices, records=(bad,) * 100, unwilling=reasons)
        assert len(encode(Envelope(message.status, run="r" * 64, task="t" * 64))) <= MAX_MESSAGE_BYTES
        assert passed_on(message).status.cohort == len(devices)

    def test_usual_message_of_a_large_fleet_is_below_8_kb(self):
        message = collecting(*fleet(1000), records=[record(number) for number in range(200)])
        assert len(encode(Envelope(message.status, run="r" * 22, task="digits"))) < 8_000


class TestReceivedMessage:
    def test_watcher_draws_the_frame_of_the_coordinator(self):
        known = {"eta_s": 12.0, "user_accuracy": 0.5, "round_bytes_down": 1_200_000, "round_bytes_up": 300_000}
        message = collecting(*fleet(MAX_DEVICES), unwilling={"too_hot": 2}, starting=7, **known)
        assert text_of(passed_on(message)) == text_of(message)
        assert passed_on(message).status == message.status

    def test_older_coordinator_without_bytes_of_the_open_round_is_understood(self):
        plain = to_plain(collecting(*fleet(3), round_bytes_down=5, round_bytes_up=7, starting=7).status)
        del plain["round_bytes_down"], plain["round_bytes_up"], plain["starting"], plain["missing"]
        status = received_message(Envelope(CoordinatorState(True, "")), from_plain(plain, RunStatus)).status
        assert (status.cohort, status.round_bytes_down, status.round_bytes_up, status.starting) == (3, 0, 0, 0)

    def test_state_that_only_a_newer_coordinator_knows_is_left_out(self):
        status = collecting(*fleet(9)).status
        newer = replace(
            status,
            devices=(*status.devices, DeviceStatus("pi", "dreaming", "", 0.0)),
            others=(StateCount("dreaming", "", 3),),
        )
        assert received_message(Envelope(newer), newer) == received_message(Envelope(status), status)

    @examples(30)
    @given(of_message(RunStatus))
    def test_any_message_within_the_limits_can_be_drawn(self, status):
        assert text_of(received_message(decode(encode(Envelope(status, run="run-1", round=3))), status))
