"""docs/reference/metrics.md: its table has exactly the metrics that a real endpoint serves."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.network.metered_fleet import VITALS, MeteredFleet
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.observability.metrics_endpoint import serve
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.telemetry.vitals import LEAST_S, REPEAT_S
from fedpatch.shared.config.listen_address import parse_address
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.features import SUMS_FEATURE
from fedpatch.shared.wire.messages import Envelope, UpdateReport
from fedpatch.shared.wire.vitals import LastRound
from fedpatch.simulator.fleet import simulation
from fedpatch.simulator.fleet.settings import FleetTerms
from tests.monitoring.prometheus import fetch, lint
from tests.support.documented_metrics import PAGE, documented, served


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """Metrics served over HTTP after a few rounds in which devices decline, fail and vanish."""
    metrics = Metrics()
    metrics.traffic.expiry.labels("ca").set(1.0)
    metrics.traffic.leader.labels("demo").set(1)
    metrics.traffic.leader_epoch.labels("demo").set(0)
    metrics.traffic.silent.labels("registry").set(0)
    metrics.rounds.evaluation.labels("mean").set(0.5)  # of a run with evaluate rounds
    report = UpdateReport("00" * 32, 1, 1, 0.0, 0.5, 0.6, 1.0, 2.0, 0.4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_REPORT", report)
        terms = FleetTerms(devices=20, rounds=3, participation=1.0, quorum=0.2, dropout_training=0.2, unwilling=0.2)
        played = MeteredFleet(terms, metrics, tmp_path_factory.mktemp("run"))
        played.run()
    relay = next(one for one in played._engine.fleet.members.values() if one.state.online)
    relay.state = replace(relay.state, features=(SUMS_FEATURE,))
    played.agenda.now += 10.0
    played.look()
    stop, url = serve(metrics.registry, parse_address("127.0.0.1:0"))
    try:
        return fetch(url)
    finally:
        stop()


def test_everything_that_is_served_is_documented_and_the_other_way_round(text):
    assert served(text) == documented()


def test_promtool_likes_what_is_served(text):
    assert lint(text) == ""


def test_the_page_names_the_defaults():
    """The address and the number of devices are those of the settings."""
    defaults = RunSettings()
    assert f"curl http://{defaults.metrics}/metrics" in PAGE
    assert f"`metrics_max_devices` ({defaults.metrics_max_devices})" in PAGE


def test_every_metric_in_an_example_exists():
    for name in re.findall(r"\b(fedpatch_[a-z_]+)\b", PAGE):
        assert re.sub(r"_(sum|count)$", "", name) in documented() | documented(agent=True), name


def test_page_has_the_traffic_of_vitals():
    """Messages and bytes per hour follow from the interval between messages and the size of a full message."""
    full = replace(VITALS, last_round=LastRound("20260504-101500-3fa9c1", 100, 21.123456, 2.5123456, 2**31, 2**31))
    size_bytes = len(encode(Envelope(full)))
    assert f"A message has {size_bytes} bytes" in PAGE
    for pause_s in (REPEAT_S, LEAST_S):
        messages = round(1000 * 3600 / pause_s)
        assert f"| {messages:,} | {messages * size_bytes / 1e6:.1f} MB |" in PAGE
