"""Metrics of rounds and of traffic, in runs that are driven by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.observability.metric_definitions import PHASES
from fedpatch.coordinator.observability.round_metrics import spread
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.chunked_transfer import Bitmap
from fedpatch.shared.wire.messages import Accept, Decline, Failed, Need, Offer
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason
from tests.coordinator.engines import BLOB
from tests.coordinator.metered_run import Metered
from tests.support.specs import gone, model, there, update

_VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)
_MORE, _LESS = MetricTerms("score", "max", -1e9, 1e9), MetricTerms("error", "min", -1e9, 1e9)


@given(values=_VALUES)
def test_p10_has_at_most_a_tenth_of_the_devices_below(values):
    found = spread(values, _MORE)
    assert sum(value < found["p10"] for value in values) <= math.ceil(0.1 * len(values))
    assert found["min"] == min(values) <= found["p10"]


@given(values=_VALUES)
def test_spread_of_an_error_mirrors_that_of_a_score(values):
    mirrored = spread([-value for value in values], _LESS)
    assert {stat: -value for stat, value in mirrored.items()} == pytest.approx(spread(values, _MORE))


def test_spread_ignores_devices_without_a_value():
    assert spread([None, 0.5, None], _MORE) == {"mean": 0.5, "p10": 0.5, "min": 0.5}
    assert spread([None], _MORE) == {}


def test_phases_of_rounds_add_up_to_their_time(tmp_path):
    run = Metered(tmp_path, busy_s=1.0)
    run.accept("ab")
    run.now += 4.0
    for _ in range(3):
        run.upload_all("ab")
    seconds = [run.value("round_phase_seconds_sum", phase=phase, side="coordinator") for phase in PHASES]
    counts = {run.value("round_phase_seconds_count", phase=phase, side="coordinator") for phase in PHASES}
    assert counts == {3.0} == {run.value("round_seconds_count")}
    # Three times publishing, aggregating and saving, and the wait of the first.
    assert run.value("round_seconds_sum") == sum(one or 0.0 for one in seconds) == 3 * 3.0 + 4.0 == run.now
    assert run.value("last_round_phase_seconds", phase="checkpoint") == 1.0
    assert run.value("round_phase_seconds_count", phase="train", side="device") == 6.0
    assert run.value("round_phase_seconds_sum", phase="train", side="device") == 12.0
    assert run.value("rounds_total", outcome="aggregated") == 3.0


def test_gauges_of_the_open_round_are_0_between_rounds(tmp_path):
    run = Metered(tmp_path, round_interval_s=1000.0)
    run.hear("a", Accept(10))
    run.look()
    told = [run.value(name) for name in ("round_open", "round_number", "round_elapsed_seconds", "quorum_updates")]
    assert told == [1.0, 1.0, 10.0, 2.0]
    assert run.value("participants", state="accepted") == run.value("participants", state="invited") == 1.0
    assert run.value("event_queue_depth") == 7.0
    run.upload_all("ab")
    run.look()
    told = [run.value(name) for name in ("round_open", "round_number", "round_elapsed_seconds", "quorum_updates")]
    assert told == [0.0, 1.0, 0.0, 0.0]
    assert run.value("participants", state="reported") == 0.0
    assert run.value("pause_seconds") == 980.0


def test_user_accuracy_is_that_of_the_last_aggregated_round(tmp_path):
    """A failed round measured a part of its devices."""
    run = Metered(tmp_path, rounds=9)
    assert run.value("user_accuracy", stat="mean", moment="before") is None
    run.upload("a", 0.2)
    run.upload("b", 0.4)
    found = [run.value("user_accuracy", stat=stat, moment="before") for stat in ("mean", "p10", "min")]
    assert found == pytest.approx([0.3, 0.22, 0.2])
    run.hear("b", Accept(10))
    run.upload("a", 0.9)
    run.hear("b", Failed(FailReason.TRAINING))
    assert run.value("rounds_total", outcome="quorum_missed") == 1.0
    assert run.value("rounds_failed_in_a_row") == 1.0
    assert run.value("user_accuracy", stat="mean", moment="after") == pytest.approx(0.3)


def test_failed_rounds_in_a_row_are_reset_by_a_success(tmp_path):
    run = Metered(tmp_path, rounds=9, max_failed_rounds=9)
    for _ in range(2):
        for device in "ab":
            run.hear(device, Decline(DeclineReason.UNWILLING, condition=Condition.BUSY))
        run.tick(60.0)
    assert run.value("rounds_failed_in_a_row") == run.value("rounds_total", outcome="too_few_accepted") == 2.0
    assert run.value("declines_total", reason="busy") == 4.0
    run.upload_all("ab")
    assert run.value("rounds_failed_in_a_row") == 0.0


def test_lost_participant_is_a_failure_unless_it_comes_back(tmp_path):
    run = Metered(tmp_path, "abc", quorum=0.3, rejoin_s=30.0)
    run.accept("abc")
    for device in "ab":
        run.state(device, gone())
    run.state("a", there())
    run.tick(31.0)
    run.upload("a")
    run.upload("c")
    assert run.value("participants_lost_total") == run.value("disconnects_total") == 2.0
    assert run.value("failures_total", reason="lost") == 1.0
    run.look()
    assert run.value("device_failures_total", device="b") == 1.0
    assert run.value("device_failures_total", device="a") == 0.0
    assert run.value("device_disconnects_total", device="a") == 1.0


def test_device_series_have_times_of_the_last_round_and_the_reason_of_absence(tmp_path):
    run = Metered(tmp_path, quorum=0.4)
    run.now += 5.0
    run.upload("a")
    run.hear("b", Decline(DeclineReason.UNWILLING, condition=Condition.TOO_HOT, retry_after_s=1e6))
    run.look()
    assert run.value("device_round_seconds", device="a") == 5.0
    assert run.value("device_train_seconds", device="a") == 2.0
    assert run.value("device_round_seconds", device="b") is None
    assert run.value("device_state", device="b", state="unwilling", reason="too_hot") == 1.0
    assert run.value("unwilling_devices", condition="too_hot") == run.value("devices", state="unwilling") == 1.0


def test_repeated_refusal_is_counted_once(tmp_path):
    run = Metered(tmp_path, "abc", quorum=0.3, grace_s=0.0, round_interval_s=1000.0)
    run.hear("b", Accept(10))
    run.hear("c", Accept(10))
    run.upload("a")
    assert run.engine.open is None
    for device in "bcbb":
        run.hear(device, Offer(update(BLOB)))
    assert run.value("refusals_total", reason="late") == run.value("updates_total", result="late") == 2.0
    assert run.value("updates_total", result="committed") == 1.0


def test_repeated_offer_is_a_stall_and_requested_chunks_are_repairs(tmp_path):
    run = Metered(tmp_path)
    run.hear("a", Accept(10))
    run.hear("a", Offer(update(BLOB)))
    assert run.value("window_stalls_total") == 0.0
    run.hear("a", Offer(update(BLOB)))
    assert run.value("window_stalls_total") == 1.0
    run.hear("b", Need(model().digest, Bitmap(model().chunk_count, (0, 2)).to_bytes()))
    assert run.value("chunks_repaired_total") == 2.0


def test_bytes_are_counted_by_direction_kind_and_form(tmp_path):
    run = Metered(tmp_path, "ab")
    run.upload("a")
    assert run.value("update_spool_bytes") == len(BLOB)
    run.upload("b")
    for kind, size in (("update_chunk", 100), ("up", 10), ("device_state", 1)):
        run.meter.received(kind, size)
    run.meter.sent(1000)
    run.look()
    assert run.value("update_spool_bytes") == 0.0
    found = {
        (direction, kind): run.value("bytes_total", direction=direction, kind=kind, form="wire")
        for direction, kind in (("down", "model"), ("up", "update"), ("down", "message"), ("up", "message"))
    }
    assert found == {
        ("down", "model"): 2 * model().size_bytes,
        ("up", "update"): 100,
        ("down", "message"): 1000,
        ("up", "message"): 11,
    }
    assert run.value("bytes_total", direction="up", kind="update", form="raw") == 2 * update(BLOB).raw_bytes


def test_updates_of_a_resumed_round_are_in_the_spool(tmp_path):
    folder = tmp_path / "updates" / "000001"
    folder.mkdir(parents=True)
    (folder / "a.fp").write_bytes(b"1234")
    assert Metered(tmp_path).value("update_spool_bytes") == 4.0
