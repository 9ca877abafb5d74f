"""benchmarks.network.metrics_cost runs the same rounds with metrics and without."""

from __future__ import annotations

from benchmarks.network.metered_fleet import MeteredFleet
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.simulator.fleet.settings import FleetTerms


def test_metrics_change_nothing_of_what_they_measure(tmp_path):
    """Events and rounds are the same with and without an observer."""
    terms = FleetTerms(devices=12, rounds=3)
    bare, metered = MeteredFleet(terms, None, tmp_path), MeteredFleet(terms, Metrics(), tmp_path)
    assert bare.run() == metered.run()
    assert (bare.events, bare.rounds) == (metered.events, metered.rounds)
