"""benchmarks.metrics_cost: it plays the same rounds with metrics and without."""

from __future__ import annotations

import pytest

from benchmarks import metrics_cost
from benchmarks.metered_fleet import MeteredFleet
from coordinator.metrics import Metrics
from simulator.fleet_terms import FleetTerms
from tests.programs import Program


@pytest.fixture
def program(monkeypatch, capsys) -> Program:
    """`python -m benchmarks.metrics_cost`."""
    return Program(metrics_cost.main, monkeypatch, capsys)


def test_metrics_change_nothing_of_what_they_measure(tmp_path):
    """The same events and the same rounds with an observer and without."""
    terms = FleetTerms(devices=12, rounds=3)
    bare, metered = MeteredFleet(terms, None, tmp_path), MeteredFleet(terms, Metrics(), tmp_path)
    assert bare.run() == metered.run()
    assert (bare.events, bare.rounds) == (metered.events, metered.rounds)


def test_help_ends_with_an_example(program):
    """`--help` ends with a line that can be copied."""
    ended = program("--help")
    assert ended.code == 0
    assert "Example: python -m benchmarks.metrics_cost" in " ".join(ended.out.replace("│", " ").split())
