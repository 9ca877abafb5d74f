"""Metrics of the vitals that devices report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.limit_settings import Limits
from fedpatch.coordinator.observability.fleet_metrics import STALE_S
from fedpatch.coordinator.observability.metric_definitions import SIGNS
from fedpatch.shared.wire.reason_codes import LinkKind
from fedpatch.shared.wire.vitals import LastRound, Vitals
from tests.coordinator.metered_run import Metered
from tests.shared.arbitrary_messages import of_message
from tests.support.specs import RUN, there

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
    """Devices a and b, and a round that has begun."""
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
    """A constant gauge would look healthy."""
    played.vitals("a", WELL)
    played.vitals("b", WELL)
    played.state("b", replace(there(), online=False))
    played.look()
    assert played.value("device_temperature_celsius", device="a") == 61.5
    assert played.value("device_temperature_celsius", device="b") is None
    assert played.value("devices_showing", sign="told") == 1
    played.now += STALE_S
    played.look()
    assert played.value("device_temperature_celsius", device="a") is None
    assert played.value("devices_showing", sign="told") == 0


def test_vitals_of_an_evicted_device_are_dropped(tmp_path):
    played = Metered(tmp_path, limits=Limits(max_devices=2))
    played.vitals("b", WELL)
    played.state("b", replace(there(), online=False))
    played.state("c", there())
    played.look()
    played.vitals("c", WELL)
    played.look()
    assert sorted(played.engine.fleet.members) == ["a", "c"]
    assert played.value("devices_showing", sign="told") == 1
    assert played.meter._vitals._told.keys() == {"c"}


def test_signs_of_trouble_are_counted_over_all_devices(played):
    played.vitals("a", replace(WELL, under_voltage=True, throttled=True, temperature_c=80.0))
    played.vitals("b", replace(WELL, external_power=False, under_voltage=None, temperature_c=79.9))
    played.look()
    counts = {sign: played.value("devices_showing", sign=sign) for sign in SIGNS}
    assert counts == {"told": 2, "on_battery": 1, "under_voltage": 1, "throttled": 1, "hot": 1}


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


@given(vitals=st.lists(st.tuples(st.sampled_from("abxyz"), of_message(Vitals)), max_size=5))
def test_vitals_of_unknown_devices_are_ignored(tmp_path_factory, vitals):
    played = Metered(tmp_path_factory.getbasetemp())
    for device, one in vitals:
        played.vitals(device, one)
    played.look()
    assert played.value("devices_showing", sign="told") == len({device for device, _ in vitals} & set("ab"))
