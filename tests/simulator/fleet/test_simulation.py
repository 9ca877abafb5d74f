"""Simulated fleets: the outcomes of rounds with devices that are slow, decline and drop out."""

from __future__ import annotations

import gc
import inspect
import json
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.simulator.fleet.report import FleetReport
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulated_device import WILL_S
from fedpatch.simulator.fleet.simulation import SimulatedFleet, simulate_fleet
from tests.support.examples import examples

PERFECT: dict[str, Any] = {
    "participation": 1.0,
    "over_select": 1.0,
    "slow_share": 0.0,
    "unwilling": 0.0,
    "dropout_training": 0.0,
    "dropout_upload": 0.0,
}
BUSY: dict[str, Any] = {"devices": 40, "rounds": 3, "participation": 0.5, "message_loss": 0.02, "outdated": 0.1}


def terms(**changes: Any) -> FleetTerms:
    """A fleet of twenty without faults other than `changes`."""
    found = FleetTerms(**{"devices": 20, "rounds": 2, **PERFECT, **changes})
    assert found.check() == []
    return found


def played(**changes: Any) -> FleetReport:
    return simulate_fleet(terms(**changes))


def as_json(report: FleetReport) -> str:
    """The whole report except its real duration."""
    return json.dumps({**report.to_dict(), "real_s": 0.0}, allow_nan=False)


probabilities = st.sampled_from((0.0, 0.1, 0.5, 1.0))
fleets = st.builds(
    terms,
    devices=st.integers(1, 8),
    rounds=st.integers(1, 3),
    seed=st.integers(0, 1000),
    participation=st.sampled_from((0.3, 1.0)),
    over_select=st.sampled_from((1.0, 2.0)),
    quorum=st.sampled_from((0.3, 0.8, 1.0)),
    deadline_s=st.sampled_from((20.0, 60.0, 600.0)),
    grace_s=st.sampled_from((0.0, 10.0, 100.0)),
    rejoin_s=st.sampled_from((0.0, 10.0, 200.0)),
    update_bytes=st.sampled_from((1, 800_000)),
    up_mbit_s=st.sampled_from((0.5, 5.0)),
    upload_slots=st.integers(1, 4),
    slow_share=probabilities,
    unwilling=probabilities,
    outdated=st.sampled_from((0.0, 0.3)),
    dropout_training=probabilities,
    dropout_upload=probabilities,
    away_s=st.sampled_from((1.0, 100.0)),
    message_loss=st.sampled_from((0.0, 0.05, 0.3)),
)


@examples(60)
@given(fleets)
def test_every_round_is_over_in_time_and_adds_up(given_terms):
    report = simulate_fleet(given_terms)
    for number, one in enumerate(report.rounds, 1):
        assert one.round == number
        assert one.seconds <= given_terms.deadline_s + given_terms.grace_s + 1e-6
        missing = sum(one.declined.values()) + sum(one.failures.values()) + one.late
        assert one.reported + missing == one.invited <= given_terms.devices
        assert one.used <= one.reported <= one.accepted
        assert (one.outcome == "aggregated") == (one.failure == "")
    assert len(report.rounds) == given_terms.rounds or report.stopped_because == "failed"


@pytest.mark.parametrize("changes", [{}, BUSY], ids=["perfect", "busy"])
def test_the_same_terms_give_the_same_report(changes):
    assert as_json(played(**changes)) == as_json(played(**changes))


@pytest.mark.medium
def test_the_report_does_not_depend_on_the_process():
    program = (
        "import json; from fedpatch.simulator.fleet.simulation import simulate_fleet\n"
        "from fedpatch.simulator.fleet.settings import FleetTerms\n"
        f"report = simulate_fleet(FleetTerms(**{ ({**PERFECT, **BUSY})!r}, dropout_training=0.2))\n"
        "print(json.dumps({**report.to_dict(), 'real_s': 0.0}))"
    ).replace("'dropout_training': 0.0, ", "")
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


def test_each_seed_has_its_own_fleet():
    assert as_json(played(**BUSY, seed=1)) != as_json(played(**BUSY, seed=2))


def test_messages_pass_the_codec():
    busy = terms(**BUSY, dropout_training=0.2, dropout_upload=0.2)
    assert as_json(simulate_fleet(busy, wire=True)) == as_json(simulate_fleet(busy))


def test_with_nothing_wrong_everybody_reports():
    report = played(model_bytes=300_000, update_bytes=200_001, quorum=1.0)
    assert [(one.invited, one.accepted, one.reported) for one in report.rounds] == [(20, 20, 20)] * 2
    assert [(one.bytes_down, one.bytes_up) for one in report.rounds] == [(20 * 300_000, 20 * 200_001)] * 2
    assert (report.failed, report.wasted_share, report.stopped_because) == (0, 0.0, "max_rounds")


def test_a_round_takes_as_long_as_its_parts():
    like = {"train_spread": 1.0, "round_spread": 1.0, "link_spread": 1.0, "latency_s": 0.0}
    [one] = played(devices=1, rounds=1, train_s=50.0, up_mbit_s=0.8, down_mbit_s=8.0, chunk_kib=8, **like).rounds
    assert one.phase_seconds.download == pytest.approx(0.8, rel=0.1)
    assert one.phase_seconds.train == pytest.approx(50.0, rel=0.01)
    assert one.phase_seconds.upload == pytest.approx(8.0, rel=0.1)


def test_a_missed_quorum_fails_the_round():
    report = played(dropout_training=1.0, away_s=300.0)
    first, second = report.rounds
    assert (first.outcome, first.failure, first.lost) == ("failed", "quorum_missed", 5)
    assert (second.round, second.outcome) == (2, "failed")
    assert (first.used, second.used, report.wasted_share) == (0, 0, 1.0)


def test_over_selection_saves_rounds_from_drop_outs():
    some = {"devices": 100, "rounds": 12, "participation": 0.2, "quorum": 0.9, "dropout_training": 0.15}
    alone, more = played(**some), played(**some, over_select=1.5)
    assert more.failed < alone.failed
    assert more.failed == 0


def test_slow_devices_are_late():
    report = played(devices=60, rounds=3, slow_share=0.1, slow_factor=20.0, train_spread=1.01, train_s=10.0)
    late = {one.late for one in report.rounds}
    assert len(late) == 1
    assert 0 < late.pop() <= 12
    assert all(one.outcome == "aggregated" and one.seconds < 100.0 for one in report.rounds)


def test_declines_are_counted_by_reason():
    first, second = played(devices=200, unwilling=0.2, outdated=0.2, quorum=0.5, upload_slots=50).rounds
    assert 20 < first.declined["unwilling"] < 60
    assert 20 < first.declined["schema_mismatch"] < 60
    assert second.invited == 200 - first.declined["schema_mismatch"]
    assert set(second.declined) == {"unwilling"}


def test_an_update_survives_that_its_device_goes_off():
    report = played(devices=5, dropout_upload=1.0, away_s=2.0, away_spread=1.0, rejoin_s=60.0)
    assert [(one.reported, one.trainings) for one in report.rounds] == [(5, 5)] * 2


def test_a_training_does_not_survive_it():
    report = played(devices=5, dropout_training=1.0, away_s=2.0, away_spread=1.0, rejoin_s=60.0)
    assert [(one.reported, one.trainings) for one in report.rounds] == [(5, 10)] * 2
    assert report.wasted_share == 0.5


def test_lost_messages_cost_time_and_no_device():
    report = played(message_loss=0.2, quorum=1.0, recruit_deadline_s=100.0)
    assert [one.reported for one in report.rounds] == [20, 20]
    assert report.virtual_s > played(quorum=1.0, recruit_deadline_s=100.0).virtual_s


def test_few_upload_slots_make_a_queue():
    waiting, quick = played(devices=100, upload_slots=1), played(devices=100, upload_slots=50)
    assert waiting.rounds[0].phase_seconds.upload > 3 * quick.rounds[0].phase_seconds.upload


@pytest.mark.medium
def test_memory_does_not_grow_with_the_rounds():
    """After a round its row in the report remains, and little else.

    Reference cycles that are not freed yet are no leak, and their number depends on earlier tests.
    """
    held: list[tuple[int, int]] = []

    def measure(_: object) -> None:
        gc.collect()
        held.append((len(fleet.agenda), tracemalloc.get_traced_memory()[0]))

    gc.freeze()
    tracemalloc.start()
    try:
        fleet = SimulatedFleet(terms(rounds=40, dropout_training=0.1, dropout_upload=0.1), measure)
        fleet.run()
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    half = len(held) // 2
    assert max(due for due, _ in held[half:]) < 2 * max(due for due, _ in held[:half])
    assert (
        max(held_bytes for _, held_bytes in held[half:])
        < max(held_bytes for _, held_bytes in held[:half]) + half * 8_000
    )


def test_a_broker_notices_a_silent_device_as_late_as_the_link_lets_it():
    """MQTT defines this time as one and a half times the agent's keepalive."""
    keepalive_s = inspect.signature(MqttLink.__init__).parameters["keepalive_s"].default
    assert 1.5 * keepalive_s == WILL_S


@pytest.mark.medium
def test_events_of_a_device_do_not_grow_with_the_devices():
    """The work of a round grows linearly with its devices: the number of events per device stays about the same."""
    events = [played(devices=devices, rounds=2, upload_slots=50).events / devices for devices in (50, 500)]
    assert events[1] < 1.5 * events[0]
