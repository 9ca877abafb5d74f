"""How benchmarks compare: ratios turn by turn, and help that can be copied."""

from __future__ import annotations

import pytest

from benchmarks import simulation
from benchmarks.contests import ratios, spread
from tests.programs import Program


@pytest.fixture
def program(monkeypatch, capsys) -> Program:
    """`python -m benchmarks.simulation`."""
    return Program(simulation.main, monkeypatch, capsys)


def test_help_ends_with_an_example(program):
    """`--help` ends with a line that can be copied."""
    ended = program("--help")
    assert ended.code == 0
    assert "Example: python -m benchmarks.simulation" in " ".join(ended.out.replace("│", " ").split())


def test_ratios_are_taken_turn_by_turn():
    """A machine that becomes slower in the middle does not move the ratio of two that take turns on it."""
    assert ratios([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
