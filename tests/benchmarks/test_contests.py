"""How benchmarks compare: ratios turn by turn."""

from __future__ import annotations

from benchmarks.support.contests import ratios, spread


def test_ratios_are_taken_turn_by_turn():
    """A machine that becomes slower in the middle does not move the ratio of two that take turns on it."""
    assert ratios([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
