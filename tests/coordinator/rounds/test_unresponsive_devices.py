"""Silent devices fail long before the deadline; slow devices do not fail."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.rounds.participant_transitions import Phase, State
from fedpatch.coordinator.rounds.round_phases import STARTING_S
from fedpatch.coordinator.rounds.unresponsive_devices import (
    ANSWER_S,
    PROBE_S,
    SILENT_S,
    SLOW_BYTES_S,
    UPLOAD_ANSWER_S,
    UnresponsiveDevices,
)
from fedpatch.coordinator.rounds.upload_scheduler import STALL_S
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Accept, Grant, Offer, Progress, WorkRequest
from fedpatch.shared.wire.reason_codes import JobPhase
from tests.coordinator.round_protocols import BLOB, Bench
from tests.support.specs import TASKS, counted, gone, report, sent, there, update

DEADLINE_S = 100_000.0


def bench(devices: str = "abcd", reported: str = "", **changes) -> Bench:
    """Return a round with a distant deadline; all devices accepted at second 1, those in `reported` reported at second 2."""
    given = {"quorum": 1.0, "deadline_s": DEADLINE_S, "grace_s": 10.0, "rejoin_s": 10.0, **changes}
    made = Bench(devices, **given).accept_all()
    reports(made, reported)
    return made


def reports(made: Bench, devices: str, now: float = 2.0) -> None:
    for device in devices:
        made.receive(device, Offer(update()), now=now)
        made.chunks(device, now=now)
        made.open.stored(device, update().digest, report(), now)


def wait(made: Bench, until: float, talking: str = "", since: float = 2.0) -> dict[float, list[str]]:
    """Let time pass while device `talking` reports progress every 10 s; return the devices that are asked again, by second."""
    asked: dict[float, list[str]] = {}
    now, talks_at = since, since
    while made.open.round.phase is Phase.COLLECTING and now < until:
        if talks_at <= now:
            made.open.on_message(talking, Progress(JobPhase.TRAINING, 1, 9), now) if talking else None
            talks_at += 10.0
        now = min(made.open.next_deadline() or until, talks_at, until)
        effects = made.open.tick(now)
        if names := [device for device, body in sent(effects) if isinstance(body, WorkRequest)]:
            asked[now] = names
    return asked


class TestMuteDevice:
    def test_mute_device_fails_after_silent_s_once_all_others_reported(self):
        made = bench(reported="abc")
        wait(made, 1.0 + SILENT_S - 1)
        assert made.state("d") is State.ACCEPTED
        wait(made, 200.0, since=60.0)
        assert made.open.round.reasons(State.FAILED) == {"silent": 1}
        assert made.open.round.closing_at < 1.0 + SILENT_S + PROBE_S

    def test_mute_device_is_probed_several_times(self):
        made = bench(reported="abc")
        asked = wait(made, 200.0)
        assert set(map(tuple, asked.values())) == {("d",)}
        assert len(asked) >= 3

    def test_mute_device_is_waited_for_while_others_work(self):
        made = bench(reported="ab")
        wait(made, 500.0, talking="c")
        assert made.state("d") is State.ACCEPTED
        reports(made, "c", now=500.0)
        wait(made, 700.0, since=500.0)
        assert made.open.round.reasons(State.FAILED) == {"silent": 1}
        assert made.open.round.closing_at <= 500.0 + PROBE_S

    def test_mute_device_is_counted_as_failed(self):
        made = bench("a")
        effects = [one for now in range(2, 100) for one in made.open.tick(float(now))]
        assert counted(effects) == [("a", "failed", "silent")]

    def test_mute_device_does_not_delay_a_round_with_quorum(self):
        made = bench(reported="abc", quorum=0.75)
        wait(made, 200.0)
        assert (made.open.round.phase, made.open.round.closing_at) == (Phase.AGGREGATING, 12.0)

    def test_mute_device_has_the_time_of_its_download(self, monkeypatch):
        """On a slow connection the probe may be queued behind the chunks of a large model."""
        made = bench("a")
        monkeypatch.setattr(made.open._issued_invitations, "size_bytes", lambda device: int(600 * SLOW_BYTES_S))
        wait(made, 600.0 + SILENT_S)
        assert made.state("a") is State.ACCEPTED
        wait(made, 10_000.0, since=600.0 + SILENT_S)
        assert made.open.round.reasons(State.FAILED) == {"silent": 1}
        assert made.open.round.closing_at < 600.0 + SILENT_S + 2 * PROBE_S


class TestSlowDevice:
    def test_device_that_reports_progress_is_waited_for(self):
        made = bench(reported="abc")
        wait(made, 90_000.0, talking="d")
        assert made.state("d") is State.TRAINING

    def test_device_that_only_answers_is_waited_for_until_the_deadline(self):
        made = bench(reported="abc")
        now = 2.0
        while now < 5_000.0:
            now = made.open.next_deadline() or 5_000.0
            for device, body in sent(made.open.tick(now)):
                assert isinstance(body, WorkRequest)
                made.receive(device, Accept(10), Progress(JobPhase.TRAINING, 0, 1), now=now + 0.1)
        assert made.state("d") is State.TRAINING

    def test_lost_device_fails_after_rejoin_s(self):
        made = bench(reported="abc")
        made.see("d", gone(), now=5.0)
        wait(made, 100.0, since=5.0)
        assert made.open.round.reasons(State.FAILED) == {"lost": 1}
        assert made.open.round.closing_at == 15.0


class TestUpload:
    def test_stalled_upload_fails_though_its_device_speaks(self):
        made = bench(reported="abc")
        made.receive("d", Offer(update()), now=3.0)
        made.open.on_chunk("d", cut(BLOB, update(), 0), 4.0)
        now = 4.0
        while made.open.round.phase is Phase.COLLECTING:
            now += 5.0
            made.receive("d", Offer(update()), now=now)
            made.open.tick(now)
        assert made.open.round.reasons(State.FAILED) == {"silent": 1}
        assert STALL_S <= now - 4.0 < STALL_S + 2 * PROBE_S

    def test_slow_upload_is_waited_for(self):
        made = bench(reported="abc")
        made.receive("d", Offer(update()), now=3.0)
        for index in range(3):
            wait(made, 63.0 + 60 * index, since=3.0 + 60 * index)
            made.open.on_chunk("d", cut(BLOB, update(), index), 63.0 + 60 * index)
        assert made.state("d") is State.UPLOADING

    def test_upload_that_waits_for_a_slot_is_not_stalled(self):
        made = bench("ab", upload_slots=1)
        made.receive("a", Offer(update(b"a" * 350)), now=3.0)
        made.receive("b", Offer(update(b"b" * 350)), now=3.0)
        assert made.open._uploads.still_since("b", 3.0, 500.0) == 500.0
        assert made.open._uploads.still_since("a", 3.0, 500.0) == 3.0

    def test_stalled_upload_frees_its_slot(self):
        made = bench("ab", upload_slots=1)
        made.receive("a", Offer(update(b"a" * 350)), now=3.0)
        made.receive("b", Offer(update(b"b" * 350)), now=3.0)
        now = 3.0
        granted: list[str] = []
        while not granted and now < 1_000.0:
            now += 4.0
            made.receive("a", Offer(update(b"a" * 350)), now=now)
            granted = [device for device, body in sent(made.open.grant(now)) if isinstance(body, Grant)]
        assert granted == ["b"]
        assert now <= 3.0 + STALL_S + 4.0


class TestDeviceThatStarts:
    def test_starting_device_has_starting_s_to_come_back(self):
        """The device's agent was restarted during the round and needs minutes to load torch."""
        made = bench(reported="abc")
        made.see("d", there("b2", tasks=()), now=5.0)
        assert made.state("d") is State.INVITED
        wait(made, STARTING_S, since=5.0)
        assert made.state("d") is State.INVITED
        made.see("d", there("b2", tasks=TASKS), now=STARTING_S)
        made.receive("d", Accept(10), now=STARTING_S + 1.0)
        assert made.state("d") is State.ACCEPTED

    def test_device_that_starts_for_ever_fails(self):
        made = bench(reported="abc")
        made.see("d", there("b2", tasks=()), now=5.0)
        wait(made, 1_000.0, since=5.0)
        assert made.open.round.reasons(State.FAILED) == {"silent": 1}
        assert made.open.round.closing_at <= 5.0 + STARTING_S + PROBE_S


class TestWithoutBroker:
    def test_silence_without_a_broker_fails_nobody(self):
        made = bench("a")
        made.open.listen(connected=False, now=2.0)
        for now in (100.0, 200.0, 300.0):
            made.open.tick(now, connected=False)
        made.open.listen(connected=True, now=300.0)
        given_up_at = 300 + int(1.5 * SILENT_S)  # the device also needs time to reconnect
        for now in range(301, given_up_at):
            made.open.tick(float(now))
        assert made.state("a") is State.ACCEPTED
        for now in range(given_up_at, 300 + 3 * int(SILENT_S)):
            made.open.tick(float(now))
        assert made.open.round.reasons(State.FAILED) == {"silent": 1}


def test_since_without_a_message_is_the_beginning():
    devices = UnresponsiveDevices(5.0)
    devices.note_message("a", 9.0)
    assert (devices.since("a"), devices.since("b")) == (9.0, 5.0)


@pytest.mark.parametrize(
    ("asked_at", "uploads", "connected", "mute_at"),
    [
        (1.0, False, True, None),  # the device sent a message after the request
        (2.0, False, True, None),  # message and request crossed
        (3.0, False, True, 3.0 + ANSWER_S),
        (3.0, True, True, 2.0 + UPLOAD_ANSWER_S),
        (3.0, False, False, None),
        (3.0, True, False, None),
    ],
)
def test_is_mute_is_false_within_the_time_to_answer_after_a_message_at_second_2(asked_at, uploads, connected, mute_at):
    devices = UnresponsiveDevices(0.0)
    devices.note_message("a", 2.0)
    devices.note_request(["a"], asked_at)
    devices.note_link(4.0, connected=connected)
    muted = [now for now in range(100) if devices.is_mute("a", float(now), uploads=uploads)]
    assert muted == ([] if mute_at is None else list(range(int(mute_at), 100)))


@pytest.mark.parametrize(("grace_s", "missed"), [(ANSWER_S, ["d"]), (ANSWER_S / 2, [])])
def test_quorum_asks_who_is_there_and_gives_time_to_answer(grace_s, missed):
    made = bench(reported="abc", quorum=0.75, grace_s=grace_s)
    asked = sent(made.open.grant(2.0))
    assert [(device, type(body)) for device, body in asked] == [("d", WorkRequest)]
    assert made.open.grant(2.0) == []
    made.open.tick(2.0 + grace_s)
    made.open.dismiss()
    assert (made.open.round.phase, made.open.absentees.missed) == (Phase.AGGREGATING, tuple(missed))


@pytest.mark.parametrize(("spoke_at", "missed"), [(2.0, ["d"]), (4.0, [])])
def test_upload_silent_for_ten_seconds_after_the_quorum_is_missed(spoke_at, missed):
    """A device with an upload slot repeats its offer every five seconds, or sends chunks."""
    made = bench(quorum=0.75, grace_s=10.0)
    made.receive("d", Offer(update()), now=2.0)
    reports(made, "abc")
    made.receive("d", Offer(update()), now=spoke_at)
    made.open.tick(12.0)
    made.open.dismiss()
    assert (made.open.round.phase, made.open.absentees.missed) == (Phase.AGGREGATING, tuple(missed))
