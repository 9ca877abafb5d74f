"""Metrics of the fleet: states of devices, and a bound on the series of single devices."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.network.metered_fleet import MeteredFleet
from fedpatch.coordinator.aggregation.limit_settings import Limits
from fedpatch.coordinator.observability.fleet_metrics import standing
from fedpatch.coordinator.observability.metric_definitions import FLEET_STATES, Metrics
from fedpatch.coordinator.observability.run_metrics import RunMetrics
from fedpatch.coordinator.rounds.run_effects import CountEvent, SaveRecord
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.shared.wire.messages import Decline, DeviceState, TaskCapability
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason
from fedpatch.simulator.fleet.settings import FleetTerms
from tests.coordinator.engines import engine
from tests.coordinator.metered_run import Metered
from tests.support.specs import SCHEMA, TASK, gone, there

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
    """Devices with series, by name of the metric."""
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


def test_bounded_updates_and_messages_from_quarantine_are_counted(tmp_path):
    drawn = Metered(tmp_path, "a")
    drawn.meter.performed(
        SaveRecord(RoundRecord(1, "aggregated", 1, 1, 0, 1, bounded={"norm": 2, "num_examples": 1})), 0.0, 0.0
    )
    drawn.meter.performed(CountEvent("a", "refused", "quarantined"), 0.0, 0.0)
    assert drawn.value("updates_bounded_total", bound="norm") == 2
    assert drawn.value("updates_bounded_total", bound="num_examples") == 1
    assert drawn.value("messages_turned_away_total") == 1
