"""Comparison of benchmarks: ratios turn by turn."""

from __future__ import annotations

from benchmarks.support.contests import ratios, spread


def test_ratios_are_taken_turn_by_turn():
    """If the machine becomes slower, the ratio of two benchmarks that take turns does not change."""
    assert ratios([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
