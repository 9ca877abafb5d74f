"""Alerts by their causes: an engine meets a cause, and promtool evaluates the rules on the metrics that it then exports.

The plays of tests/monitoring/alerts have thresholds and times on series that are written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from fedpatch.coordinator.observability.ended_run import ended_metrics
from fedpatch.coordinator.rounds.run_events import DevicesRevoked, HoldsChanged
from fedpatch.shared.wire.reason_codes import LinkKind
from fedpatch.shared.wire.vitals import Vitals
from tests.coordinator.metered_run import Metered
from tests.coordinator.observability.test_ended_run import GOOD, INFO, MISSED
from tests.monitoring.prometheus import promtool
from tests.support.paths import ROOT
from tests.support.specs import gone, there

ALERTS = ROOT / "ansible" / "roles" / "monitoring" / "files" / "alerts" / "fedpatch.yml"
DEVICES = "abcdefgh"
WELL = Vitals(True, 0.75, False, False, 61.5, LinkKind.WIFI, 0.5, 2**29, 2**33)

Scrape = Mapping[str, float]


def _scrape(fleet: Metered) -> Scrape:
    fleet.look()
    return _series(fleet.metrics.registry)


def _series(registry: CollectorRegistry) -> Scrape:
    """Return the present series as Prometheus stores them."""
    return {
        _name(sample.name, sample.labels): float(sample.value)
        for metric in registry.collect()
        for sample in metric.samples
        if not math.isnan(sample.value) and sample.name.startswith("fedpatch_")
    }


def _name(name: str, labels: Mapping[str, str]) -> str:
    of_target = {"job": "fedpatch", "instance": "hub:9464", **labels}
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in of_target.items()) + "}"


def _round(fleet: Metered, accuracy: float = 0.5) -> None:
    """Play the open round, to which all devices report."""
    fleet.upload_all(DEVICES, accuracy)
    fleet.tick(1.0)


def _firing(folder: Path, phases: Sequence[tuple[int, Scrape]], expected: set[str]) -> str:
    """Return promtool's complaints, if other alerts fire at the end of the phases (minutes and series of each)."""
    values = {
        name: " ".join(
            f"{series[name]}x{minutes - 1}" if name in series else f"stale _x{minutes - 1}"
            for minutes, series in phases
        )
        for name in {name for _, series in phases for name in series}
    }
    values['up{job="fedpatch",instance="hub:9464"}'] = f"1x{sum(minutes for minutes, _ in phases)}"
    firing = {
        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{sum(minutes for minutes, _ in phases) - 1}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
    }
    series = [{"series": name, "values": of} for name, of in sorted(values.items())]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [firing]}
    play = folder / "play.yml"
    play.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}), "utf-8"
    )
    done = promtool("test", "rules", play)
    return "" if done.returncode == 0 else done.stdout + done.stderr


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
}


def _healthy(folder: Path) -> Metered:
    """A fleet of eight devices after a round, in the next one."""
    fleet = Metered(folder, devices=DEVICES, rounds=99, quorum=0.5, recruit_deadline_s=1e5)
    fleet.metrics.traffic.free.set(2e10)
    fleet.metrics.traffic.size.set(3e10)
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
    assert _firing(tmp_path, [(60, healthy), (80, _scrape(fleet))], expected) == ""


@pytest.mark.medium
def test_device_that_comes_and_goes_fires_its_alert_alone(tmp_path):
    fleet = _healthy(tmp_path)
    phases = [(60, _scrape(fleet))]
    for _ in range(8):
        fleet.state("h", gone())
        phases.append((2, _scrape(fleet)))
        fleet.state("h", there())
        phases.append((4, _scrape(fleet)))
    assert _firing(tmp_path, phases, {"FedpatchDeviceFlapping"}) == ""


@pytest.mark.medium
@pytest.mark.parametrize(
    "records", [(MISSED, GOOD), (GOOD, MISSED, MISSED)], ids=["good round last", "missed rounds last"]
)
def test_last_metrics_of_a_finished_run_fire_nothing(tmp_path, records):
    """A run that failed serves none, so its coordinator is down."""
    ended = _series(ended_metrics(INFO, records))
    assert _firing(tmp_path, [(60, _scrape(_healthy(tmp_path))), (300, ended)], set()) == ""
