"""Metrics of a run: rounds, traffic, states of devices, vitals, and the limit of series for single devices."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.network.metered_fleet import MeteredFleet
from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.observability.device_vitals import STALE_S
from fedpatch.coordinator.observability.fleet_metrics import standing
from fedpatch.coordinator.observability.metric_definitions import FLEET_STATES, PHASES, SIGNS, Metrics
from fedpatch.coordinator.observability.round_metrics import spread
from fedpatch.coordinator.observability.run_metrics import RunMetrics
from fedpatch.coordinator.observability.single_devices import worst_in_turn
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import CountEvent, SaveRecord
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.chunks import Bitmap
from fedpatch.shared.wire.features import SUMS_FEATURE
from fedpatch.shared.wire.messages import Accept, Decline, DeviceState, Failed, Need, Offer, TaskCapability
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, LinkKind
from fedpatch.shared.wire.vitals import LastRound, Vitals
from fedpatch.simulator.fleet.settings import FleetTerms
from tests.coordinator.engines import BLOB, engine
from tests.coordinator.metered_run import Metered
from tests.shared.arbitrary_messages import of_message
from tests.support.specs import RUN, SCHEMA, TASK, gone, model, there, update

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
    # Publishing, aggregating and saving in three rounds, and the wait of the first round.
    assert run.value("round_seconds_sum") == sum(one or 0.0 for one in seconds) == 3 * 3.0 + 4.0 == run.now
    assert run.value("last_round_phase_seconds", phase="checkpoint") == 1.0
    assert run.value("round_phase_seconds_count", phase="train", side="device") == 6.0
    assert run.value("round_phase_seconds_sum", phase="train", side="device") == 12.0
    assert run.value("rounds_total", outcome="aggregated") == 3.0


def test_gauges_of_the_open_round_are_0_between_rounds(tmp_path):
    run = Metered(tmp_path, round_interval_s=1000.0)
    run.receive("a", Accept(10))
    run.look()
    gauges = [run.value(name) for name in ("round_open", "round_number", "round_elapsed_seconds", "quorum_updates")]
    assert gauges == [1.0, 1.0, 10.0, 2.0]
    assert run.value("participants", state="accepted") == run.value("participants", state="invited") == 1.0
    assert run.value("event_queue_depth") == 7.0
    run.upload_all("ab")
    run.look()
    gauges = [run.value(name) for name in ("round_open", "round_number", "round_elapsed_seconds", "quorum_updates")]
    assert gauges == [0.0, 1.0, 0.0, 0.0]
    assert run.value("participants", state="reported") == 0.0
    assert run.value("pause_seconds") == 980.0


def test_user_accuracy_is_that_of_the_last_aggregated_round(tmp_path):
    """A failed round has measured only a part of its devices."""
    run = Metered(tmp_path, rounds=9)
    assert run.value("user_accuracy", stat="mean", moment="before") is None
    run.upload("a", 0.2)
    run.upload("b", 0.4)
    found = [run.value("user_accuracy", stat=stat, moment="before") for stat in ("mean", "p10", "min")]
    assert found == pytest.approx([0.3, 0.22, 0.2])
    run.receive("b", Accept(10))
    run.upload("a", 0.9)
    run.receive("b", Failed(FailReason.TRAINING))
    assert run.value("rounds_total", outcome="quorum_missed") == 1.0
    assert run.value("rounds_failed_in_a_row") == 1.0
    assert run.value("user_accuracy", stat="mean", moment="after") == pytest.approx(0.3)


def test_failed_rounds_in_a_row_are_reset_by_a_success(tmp_path):
    run = Metered(tmp_path, rounds=9, max_failed_rounds=9)
    for _ in range(2):
        for device in "ab":
            run.receive(device, Decline(DeclineReason.UNWILLING, condition=Condition.BUSY))
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


def test_relay_has_a_series_of_the_devices_of_its_site_and_other_devices_have_none(tmp_path):
    run = Metered(tmp_path, "ab")
    for examples, expected in ((300, 30.0), (0, 0.0)):
        site = TaskCapability(TASK, SCHEMA, examples, members=30)
        run.state("a", replace(there(tasks=(site,)), features=(SUMS_FEATURE,)))
        run.look()
        assert run.value("device_site_devices", device="a") == expected
        assert run.value("device_site_devices", device="b") is None
    run.state("a", gone())
    run.look()
    assert run.value("device_site_devices", device="a") is None


def test_device_series_have_times_of_the_last_round_and_the_reason_of_absence(tmp_path):
    run = Metered(tmp_path, quorum=0.4)
    run.now += 5.0
    run.upload("a")
    run.receive("b", Decline(DeclineReason.UNWILLING, condition=Condition.TOO_HOT, retry_after_s=1e6))
    run.look()
    assert run.value("device_round_seconds", device="a") == 5.0
    assert run.value("device_train_seconds", device="a") == 2.0
    assert run.value("device_round_seconds", device="b") is None
    assert run.value("device_state", device="b", state="unwilling", reason="too_hot") == 1.0
    assert run.value("unwilling_devices", condition="too_hot") == run.value("devices", state="unwilling") == 1.0


def test_repeated_refusal_is_counted_once(tmp_path):
    run = Metered(tmp_path, "abc", quorum=0.3, grace_s=0.0, round_interval_s=1000.0)
    run.receive("b", Accept(10))
    run.receive("c", Accept(10))
    run.upload("a")
    assert run.engine.open is None
    for device in "bcbb":
        run.receive(device, Offer(update(BLOB)))
    assert run.value("refusals_total", reason="late") == run.value("updates_total", result="late") == 2.0
    assert run.value("updates_total", result="committed") == 1.0


def test_repeated_offer_is_a_stall_and_requested_chunks_are_repairs(tmp_path):
    run = Metered(tmp_path)
    run.receive("a", Accept(10))
    run.receive("a", Offer(update(BLOB)))
    assert run.value("window_stalls_total") == 0.0
    run.receive("a", Offer(update(BLOB)))
    assert run.value("window_stalls_total") == 1.0
    run.receive("b", Need(model().digest, Bitmap(model().chunk_count, (0, 2)).to_bytes()))
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


_TASKS = st.sampled_from([(), (TaskCapability(TASK, SCHEMA, 10),), (TaskCapability("other", SCHEMA, 10),)])
_STATES = st.builds(
    DeviceState,
    online=st.booleans(),
    boot=st.sampled_from(["first", "second"]),
    tasks=_TASKS,
    unwilling=st.none() | st.sampled_from(Condition),
)
_DECLINES = st.builds(Decline, reason=st.sampled_from(DeclineReason), retry_after_s=st.sampled_from([0.0, 60.0]))
_EVENTS = st.tuples(st.sampled_from("abc"), _STATES | _DECLINES)


def _series(metrics: Metrics) -> dict[str, set[str]]:
    """Return the devices with series, by name of the metric."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if "device" in sample.labels:
                found.setdefault(sample.name, set()).add(sample.labels["device"])
    return found


def _play(devices: int, directory, max_devices: int, rounds: int = 2, **terms) -> tuple[MeteredFleet, Metrics]:
    metrics = Metrics()
    drawn = FleetTerms(devices=devices, rounds=rounds, participation=1.0, over_select=1.0, **terms)
    fleet = MeteredFleet(drawn, metrics, directory, max_devices=max_devices)
    fleet.run()
    fleet.agenda.now += 10.0
    fleet.look()
    return fleet, metrics


@given(events=st.lists(_EVENTS, max_size=20))
def test_each_device_has_one_state_and_eligible_devices_can_be_invited(events):
    fleet = engine(devices=9).fleet
    for device, event in events:
        if isinstance(event, DeviceState):
            fleet.update(device, event)
        elif device in fleet.members:
            fleet.declined(device, event, 0.0)
    found = Counter(standing(member, TASK) for member in fleet.members.values())
    assert found.keys() <= set(FLEET_STATES)
    assert found["eligible"] == fleet.present
    assert found["unwilling"] == fleet.unwilling().total()


@pytest.mark.parametrize(("held", "state"), [("", "offline"), ("drained", "drained"), ("revoked", "barred")])
def test_device_that_the_operator_took_out_does_not_count_as_offline(held, state):
    """Nobody looks for it, and no alert tells of it."""
    fleet = engine(devices=2).fleet
    fleet.update("pi-1", there())
    fleet.update("pi-1", gone())
    assert standing(replace(fleet.members["pi-1"], held=held), TASK) == state


@pytest.mark.medium
def test_large_fleet_has_series_of_max_devices_only(tmp_path):
    _, metrics = _play(1000, tmp_path, 50)
    series = _series(metrics)
    assert len(set().union(*series.values())) == 50
    assert metrics.registry.get_sample_value("fedpatch_devices_without_series") == 950
    assert metrics.registry.get_sample_value("fedpatch_device_series") == 50
    assert len(generate_latest(metrics.registry).splitlines()) < 1_800


def test_slowest_devices_have_series(tmp_path):
    _, metrics = _play(60, tmp_path, 60, unwilling=0.0, dropout_training=0.0, dropout_upload=0.0, message_loss=0.0)
    took = {
        sample.labels["device"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "fedpatch_device_round_seconds"
    }
    _, few = _play(60, tmp_path, 5, unwilling=0.0, dropout_training=0.0, dropout_upload=0.0, message_loss=0.0)
    shown = _series(few)["fedpatch_device_online"]
    assert len(shown) == 5
    in_time = shown & took.keys()
    assert min((took[one] for one in in_time), default=1e9) >= max(took[one] for one in took.keys() - shown)


@given(
    answers=st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3), st.tuples(*[st.sampled_from([0.0, 1.0, 2.0])] * 3), max_size=20
    ),
    most=st.integers(0, 12),
)
def test_devices_with_series_are_the_worst_of_each_question(answers, most):
    """Of n places each of q questions has at least n // q for its worst, unless fewer have a bad answer."""
    chosen = worst_in_turn(answers, most)
    assert len(chosen) == min(most, len(answers))
    for one in range(3):
        bad = sorted((device for device in answers if answers[device][one]), key=lambda device: -answers[device][one])
        sure = bad[: most // 3]
        least = min((answers[device][one] for device in sure), default=math.inf)
        assert {device for device in bad if answers[device][one] > least} <= chosen
        assert sum(answers[device][one] >= least for device in chosen) >= len(sure)


def test_device_of_a_large_fleet_that_is_offline_fails_or_is_hot_has_series(tmp_path):
    run = Metered(tmp_path, "abcdefgh", rounds=9)
    run.metrics = Metrics()
    run.meter = RunMetrics(run.metrics, run.engine, tmp_path, strategy="fedavg", max_devices=4)
    run.receive("f", Failed(FailReason.TRAINING))
    run.vitals("g", Vitals(temperature_c=91.0))
    run.state("h", gone())
    run.look()
    shown = _series(run.metrics)["fedpatch_device_online"]
    assert {"f", "g", "h"} <= shown and len(shown) == 4


def test_max_devices_0_exports_no_device(tmp_path):
    _, metrics = _play(10, tmp_path, 0)
    assert _series(metrics) == {}
    assert metrics.registry.get_sample_value("fedpatch_devices_without_series") == 10


def test_counters_of_devices_add_up_to_those_of_the_fleet(tmp_path):
    _, metrics = _play(40, tmp_path, 40, rounds=5, unwilling=0.2, dropout_training=0.2)

    def total(name: str) -> float:
        return sum(
            one.value
            for family in metrics.registry.collect()
            for one in family.samples
            if one.name == f"fedpatch_{name}"
        )

    for what in ("declines", "disconnects"):
        assert total(f"{what}_total") == total(f"device_{what}_total") > 0
    assert total("failures_total") + total("refusals_total") >= total("device_failures_total") > 0


def test_evicted_device_has_no_series(tmp_path):
    drawn = Metered(tmp_path, "abc", limits=Limits(max_devices=3))
    drawn.metrics = Metrics()
    drawn.meter = RunMetrics(drawn.metrics, drawn.engine, tmp_path, strategy="fedavg", max_devices=2)
    drawn.look()
    for left, came in zip("abc", "xyz", strict=True):
        drawn.state(left, gone())
        drawn.state(came, there())
        drawn.look()
    assert set().union(*_series(drawn.metrics).values()) <= set("xyz") == drawn.engine.fleet.members.keys()


def test_update_pull_is_that_of_the_last_round(tmp_path):
    drawn = Metered(tmp_path, "a")
    for number, quantiles in enumerate(({"p50": 0.1, "p90": 0.5, "max": 0.9}, {}), 1):
        drawn.meter.performed(
            SaveRecord(RoundRecord(number, "aggregated", 1, 1, 0, 1, pull_quantiles=quantiles)), 0.0, 0.0
        )
        assert drawn.value("update_pull", stat="max") == quantiles.get("max", 0.0)
        assert drawn.value("update_pull", stat="p50") == quantiles.get("p50", 0.0)


def test_bounded_updates_and_messages_from_quarantine_are_counted(tmp_path):
    drawn = Metered(tmp_path, "a")
    drawn.meter.performed(
        SaveRecord(RoundRecord(1, "aggregated", 1, 1, 0, 1, bounded={"norm": 2, "num_examples": 1})), 0.0, 0.0
    )
    drawn.meter.performed(CountEvent("a", "refused", "quarantined"), 0.0, 0.0)
    assert drawn.value("updates_bounded_total", bound="norm") == 2
    assert drawn.value("updates_bounded_total", bound="num_examples") == 1
    assert drawn.value("messages_turned_away_total") == 1


WELL = Vitals(True, 0.75, False, False, 61.5, LinkKind.WIFI, 0.5, 2**29, 2**33)
SERIES = {
    "temperature_celsius": 61.5,
    "external_power": 1,
    "battery_ratio": 0.75,
    "under_voltage": 0,
    "throttled": 0,
    "load_per_cpu": 0.5,
    "free_memory_bytes": 2**29,
    "free_disk_bytes": 2**33,
    "upload_seconds": None,
}


@pytest.fixture
def played(tmp_path) -> Metered:
    """A run with devices a and b, and an open round."""
    return Metered(tmp_path)


def _uploads(played: Metered) -> tuple[float | None, float | None]:
    of_device = {"phase": "upload", "side": "device"}
    return played.value("round_phase_seconds_count", **of_device), played.value("round_phase_seconds_sum", **of_device)


def test_device_has_series_of_the_vitals_that_it_reported(played):
    played.vitals("a", WELL)
    played.look()
    assert {name: played.value(f"device_{name}", device="a") for name in SERIES} == SERIES
    assert played.value("device_link", device="a", kind="wifi") == 1
    assert {played.value(f"device_{name}", device="b") for name in SERIES} == {None}
    played.vitals("a", replace(WELL, temperature_c=None, link=None, free_disk_bytes=None))
    played.look()
    assert played.value("device_temperature_celsius", device="a") is None
    assert played.value("device_link", device="a", kind="wifi") is None
    assert played.value("device_battery_ratio", device="a") == 0.75


def test_stale_vitals_and_those_of_offline_devices_have_no_series(played):
    """Otherwise a constant gauge would show a healthy device."""
    played.vitals("a", WELL)
    played.vitals("b", WELL)
    played.state("b", replace(there(), online=False))
    played.look()
    assert played.value("device_temperature_celsius", device="a") == 61.5
    assert played.value("device_temperature_celsius", device="b") is None
    assert played.value("devices_showing", sign="reporting") == 1
    played.now += STALE_S
    played.look()
    assert played.value("device_temperature_celsius", device="a") is None
    assert played.value("devices_showing", sign="reporting") == 0


def test_vitals_of_an_evicted_device_are_dropped(tmp_path):
    played = Metered(tmp_path, limits=Limits(max_devices=2))
    played.vitals("b", WELL)
    played.state("b", replace(there(), online=False))
    played.state("c", there())
    played.look()
    played.vitals("c", WELL)
    played.look()
    assert sorted(played.engine.fleet.members) == ["a", "c"]
    assert played.value("devices_showing", sign="reporting") == 1
    assert played.meter._vitals._seen.keys() == {"c"}


def test_signs_of_trouble_are_counted_over_all_devices(played):
    played.vitals("a", replace(WELL, under_voltage=True, throttled=True, temperature_c=80.0))
    played.vitals("b", replace(WELL, external_power=False, under_voltage=None, temperature_c=79.9))
    played.look()
    counts = {sign: played.value("devices_showing", sign=sign) for sign in SIGNS}
    assert counts == {"reporting": 2, "on_battery": 1, "under_voltage": 1, "throttled": 1, "hot": 1}


def test_upload_time_of_a_device_is_observed_once_per_round(played):
    last = LastRound(RUN, 1, 20.0, 2.5)
    for other in (replace(last, run="other"), replace(last, round=0), replace(last, round=7)):
        played.vitals("a", replace(WELL, last_round=other))
    assert _uploads(played) == (0, 0)
    for _ in range(3):
        played.vitals("a", replace(WELL, last_round=last))
    assert _uploads(played) == (1, 2.5)
    played.vitals("b", replace(WELL, last_round=replace(last, upload_s=0.5)))
    played.look()
    assert _uploads(played) == (2, 3.0)
    assert played.value("device_upload_seconds", device="a") == 2.5


@pytest.mark.parametrize(
    ("reported", "counted"),
    [
        ([None, (5, 0), (5, 70)], (5, 70)),
        ([(500, 0), (500, 70)], (0, 70)),  # an earlier coordinator counted the first 500
        ([(500, 0), (30, 0), (50, 0)], (50, 0)),  # the agent has restarted
        ([None, None], (0, 0)),
    ],
)
def test_bytes_of_models_are_counted_once_by_way(played, reported, counted):
    for sizes in reported:
        last = LastRound(RUN, 1, 20.0, 2.5, *sizes) if sizes else None
        for _ in range(2):
            played.vitals("a", replace(WELL, last_round=last))
    assert tuple(played.value("downloaded_bytes_total", way=way) for way in ("mqtt", "url")) == counted


def test_older_agent_counts_no_bytes_of_models(played):
    for number in (1, 2):
        played.vitals("a", replace(WELL, last_round=LastRound(RUN, number, 20.0, 2.5)))
    assert played.value("downloaded_bytes_total", way="mqtt") == 0


@given(vitals=st.lists(st.tuples(st.sampled_from("abxyz"), of_message(Vitals)), max_size=5))
def test_vitals_of_unknown_devices_are_ignored(tmp_path_factory, vitals):
    played = Metered(tmp_path_factory.getbasetemp())
    for device, one in vitals:
        played.vitals(device, one)
    played.look()
    assert played.value("devices_showing", sign="reporting") == len({device for device, _ in vitals} & set("ab"))
