"""Alerts by their causes: an engine meets a cause, and promtool evaluates the rules on the metrics that it then exports.

The free space of the disk is set by hand. The plays of tests/monitoring/alerts have thresholds and times on series that are
written by hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy
from fedpatch.coordinator.observability.ended_run import ended_metrics
from fedpatch.coordinator.observability.metrics_endpoint import of_files
from fedpatch.coordinator.pki.x509 import Period, make_ca, new_key
from fedpatch.coordinator.rounds.run_events import Aggregated, DevicesRevoked, HoldsChanged
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.wire.messages import Accept, Progress
from fedpatch.shared.wire.reason_codes import Condition, JobPhase, LinkKind
from fedpatch.shared.wire.vitals import Vitals
from tests.coordinator.metered_run import Metered
from tests.coordinator.observability.test_ended_run import GOOD, INFO, MISSED
from tests.monitoring.rule_play import ALERTS, Scrape, complaints, series_name
from tests.support.specs import gone, there

TARGET = {"job": "fedpatch", "instance": "hub:9464"}
DEVICES = "abcdefgh"
WELL = Vitals(True, 0.75, False, False, 61.5, LinkKind.WIFI, 0.5, 2**29, 2**33)


def _scrape(fleet: Metered) -> Scrape:
    fleet.look()
    return _series(fleet.metrics.registry)


def _series(registry: CollectorRegistry) -> Scrape:
    """Return the present series as Prometheus stores them."""
    return {
        series_name(sample.name, {**TARGET, **sample.labels}): float(sample.value)
        for metric in registry.collect()
        for sample in metric.samples
        if not math.isnan(sample.value) and sample.name.startswith("fedpatch_")
    }


def _round(fleet: Metered, accuracy: float = 0.5) -> None:
    """Play the open round, to which all devices report."""
    fleet.upload_all(DEVICES, accuracy)
    fleet.tick(1.0)


def _away(*devices: str) -> Callable[[Metered], None]:
    def cause(fleet: Metered) -> None:
        for device in devices:
            fleet.state(device, gone())

    return cause


def _drained(fleet: Metered) -> None:
    fleet.perform(fleet.engine.handle(HoldsChanged({"h": "drained"}), fleet.now))
    _away("h")(fleet)


def _revoked(fleet: Metered) -> None:
    fleet.perform(fleet.engine.handle(DevicesRevoked(frozenset("h")), fleet.now))
    _away("h")(fleet)


def _vitals(device: str, **changes: object) -> Callable[[Metered], None]:
    return lambda fleet: fleet.vitals(device, replace(WELL, **changes))  # type: ignore[arg-type]


def _hot(fleet: Metered) -> None:
    for device in "abc":
        _vitals(device, temperature_c=85.0)(fleet)


def _stuck(fleet: Metered) -> None:
    fleet.now += 1000.0  # no time reaches the engine


def _silent(fleet: Metered) -> None:
    """Two rounds whose devices accept and send nothing; after a failed round the engine pauses."""
    for _ in range(2):
        fleet.accept(DEVICES)
        fleet.tick(400.0)
        fleet.tick(30.0)


def _no_link(fleet: Metered) -> None:
    fleet.meter.link(connected=False)


def _full_disk(fleet: Metered) -> None:
    fleet.metrics.traffic.free.set(9e8)


def _ending_certificate(fleet: Metered) -> None:
    """The clock of promtool begins in 1970."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "ca.crt")
        file.write_bytes(make_ca("kitchen", new_key(), 1, Period(0, 20 * 86_400)))
        ends = of_files(RunSettings(ca_file=file))["ca"]()
    assert ends is not None
    fleet.metrics.traffic.expiry.labels("ca").set(ends)


def _unwilling(fleet: Metered) -> None:
    """The round ends, and too few devices are left for the next one."""
    for device in "abcde":
        fleet.state(device, replace(there(), unwilling=Condition.NOT_CHARGING))
    _round(fleet)


def _pulled(rounds: int, pull: float) -> Callable[[Metered], None]:
    """The bounds take a share of one device's change away, and little of the others'."""

    def cause(fleet: Metered) -> None:
        fleet.aggregated = Aggregated(pulls={"h": pull}, pull_quantiles={"p50": 0.1, "p90": 0.2, "max": pull})
        for _ in range(rounds):
            _round(fleet)

    return cause


CAUSES: dict[str, tuple[Callable[[Metered], None], set[str]]] = {
    "nothing": (lambda fleet: None, set()),
    "device away": (_away("h"), {"DeviceOffline"}),
    "device away in the open round": (_away("a"), {"DeviceOffline"}),
    "device drained and away": (_drained, set()),
    "device revoked and away": (_revoked, set()),
    "fleet away": (_away(*"fgh"), {"DeviceOffline", "FleetOffline"}),
    "device hot": (_vitals("h", temperature_c=85.0), {"DeviceTooHot"}),
    "many devices hot": (_hot, {"DeviceTooHot", "DevicesUnwell"}),
    "weak supply": (_vitals("h", under_voltage=True), {"DeviceUnderVoltage"}),
    "slowed processor": (_vitals("h", throttled=True), {"DeviceThrottled"}),
    "round that does not end": (_stuck, {"RoundStuck"}),
    "two rounds without a quorum": (_silent, {"QuorumMissed"}),
    "connection lost": (_no_link, {"BrokerDisconnected"}),
    "accuracy lost": (lambda fleet: _round(fleet, 0.2), {"UserAccuracyDrop"}),
    "disk nearly full": (_full_disk, {"DiskLow"}),
    "certificate near its end": (_ending_certificate, {"CertificateExpiring"}),
    "too few devices for a round": (_unwilling, {"TooFewDevices"}),
    "device pulled far in four rounds": (_pulled(4, 0.9), set()),
    "device pulled far in five rounds": (_pulled(5, 0.9), {"UpdatePulledFar"}),
    "device pulled by nearly all of its change": (_pulled(1, 0.99999), {"UpdatePulledFar"}),
}


def _on_a_healthy_host(fleet: Metered) -> Metered:
    fleet.metrics.traffic.free.set(2e10)
    fleet.metrics.traffic.size.set(3e10)
    fleet.metrics.traffic.expiry.labels("ca").set(400 * 86_400)
    return fleet


TERMS: dict[str, Any] = {"rounds": 99, "quorum": 0.5, "recruit_deadline_s": 1e5}


def _healthy(folder: Path) -> Metered:
    """A fleet of eight devices after a round, in the next one."""
    fleet = _on_a_healthy_host(Metered(folder, devices=DEVICES, **TERMS))
    for device in DEVICES:
        fleet.vitals(device, WELL)
    _round(fleet)
    return fleet


@pytest.mark.medium
@pytest.mark.parametrize("name", CAUSES)
def test_cause_at_an_engine_fires_exactly_its_alerts(tmp_path, name):
    cause, alerts = CAUSES[name]
    fleet = _healthy(tmp_path)
    healthy = _scrape(fleet)
    cause(fleet)
    expected = {f"Fedpatch{alert}" for alert in alerts}
    assert complaints(tmp_path, [(60, healthy), (80, _scrape(fleet))], expected) == ""


@pytest.mark.medium
def test_young_run_whose_devices_come_one_after_the_other_fires_nothing(tmp_path):
    fleet = _on_a_healthy_host(Metered(tmp_path, devices=DEVICES, present="", wait_s=1e5, **TERMS))
    phases = []
    for device in DEVICES:
        phases.append((1, _scrape(fleet)))
        fleet.state(device, there())
    assert complaints(tmp_path, phases, set()) == ""
    phases.append((2, _scrape(fleet)))
    _round(fleet)
    phases.append((30, _scrape(fleet)))
    assert fleet.value("rounds_total", outcome="aggregated") == 1.0
    assert complaints(tmp_path, phases, set()) == ""


FLAPPING = {"h": {"FedpatchDeviceFlapping"}, DEVICES: {"FedpatchDeviceFlapping", "FedpatchFleetFlapping"}}


@pytest.mark.medium
@pytest.mark.parametrize("devices", FLAPPING)
def test_devices_that_come_and_go_fire_their_alerts(tmp_path, devices):
    fleet = _healthy(tmp_path)
    phases = [(60, _scrape(fleet))]
    for _ in range(8):
        for device in devices:
            fleet.state(device, gone())
        phases.append((2, _scrape(fleet)))
        for device in devices:
            fleet.state(device, there())
        phases.append((4, _scrape(fleet)))
    assert complaints(tmp_path, phases, FLAPPING[devices]) == ""


STALE: dict[int, set[str]] = {1: {"FedpatchStalenessAtCap"}, 4: set()}


@pytest.mark.medium
@pytest.mark.parametrize("max_staleness", STALE)
def test_work_that_is_ended_at_max_staleness_fires_its_alert(tmp_path, max_staleness):
    """Two devices make three versions while a third one trains for the first."""
    carry = CarryPolicy(max_staleness=max_staleness, power=0.5)
    buffered: dict[str, Any] = {
        "quorum_updates": 2,
        "grace_s": 0.0,
        "carries": True,
        "carry": carry,
        "recruit_deadline_s": 1e5,
    }
    fleet = _on_a_healthy_host(Metered(tmp_path, "abc", rounds=99, **buffered))
    fleet.receive("c", Accept(10))
    fleet.receive("c", Progress(JobPhase.TRAINING, 1, 10))
    before = _scrape(fleet)
    for _ in range(3):
        fleet.upload_all("ab")
    assert complaints(tmp_path, [(60, before), (30, _scrape(fleet))], STALE[max_staleness]) == ""


# By a real Prometheus and a real node_exporter.
ELSEWHERE = {
    "test_alerts.py": {"FedpatchCoordinatorDown", "FedpatchNothingMeasured", "FedpatchHostDown"},
    "test_host_alerts.py": {
        "FedpatchHostHot",
        "FedpatchHostDiskFull",
        "FedpatchHostMemoryLow",
        "FedpatchHostThrottled",
    },
}


def test_each_alert_is_fired_by_a_cause():
    caused = {f"Fedpatch{alert}" for _, alerts in CAUSES.values() for alert in alerts}
    caused = caused.union(*FLAPPING.values(), *STALE.values(), *ELSEWHERE.values())
    assert set(re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8"))) == caused
    for file, alerts in ELSEWHERE.items():
        text = Path(__file__).with_name(file).read_text("utf-8")
        assert [alert for alert in alerts if alert not in text] == []


@pytest.mark.medium
@pytest.mark.parametrize(
    "records", [(MISSED, GOOD), (GOOD, MISSED, MISSED)], ids=["good round last", "missed rounds last"]
)
def test_last_metrics_of_a_finished_run_fire_nothing(tmp_path, records):
    """A run that failed serves none, so its coordinator is down."""
    ended = _series(ended_metrics(INFO, records))
    assert complaints(tmp_path, [(60, _scrape(_healthy(tmp_path))), (300, ended)], set()) == ""
