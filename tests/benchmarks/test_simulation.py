"""benchmarks.simulation at toy size: whatever is measured there still runs, and does the same work."""

from __future__ import annotations

import json

import pytest

from benchmarks import simulation
from benchmarks.contests import ratios, spread
from tests.programs import Program

OURS = ("fedpatch", "fedpatch-2", "fedpatch-ua", "plain", "plain-2")


@pytest.fixture
def program(monkeypatch, capsys) -> Program:
    """`python -m benchmarks.simulation`."""
    return Program(simulation.main, monkeypatch, capsys)


@pytest.mark.slow
def test_every_contestant_trains_the_same_model(program, tmp_path):
    """The losses of fedpatch, over one process and two, and of the plain loop agree round by round."""
    out = tmp_path / "new" / "simulation.json"
    ended = program("--toy", "--rounds", 2, "--json", "--out", out, "--peers-python", tmp_path / "python")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert json.loads(out.read_text("utf-8")) == document

    (work,) = document["works"]
    contests = {one["name"]: one for one in work["contests"]}
    for name in OURS:
        assert contests[name]["train_losses"] == pytest.approx(contests["fedpatch"]["train_losses"], abs=2e-3), name
    assert {"products", "products-2-threads", "products-used", "plain-2-threads"} < contests.keys()
    assert contests["fedpatch"]["ratio_to_fedpatch"]["wall"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert [one["clients"] for one in document["growth"]] == [clients for clients, _ in simulation.TOY_SIZES]
    assert set(document["not_measured"].values()) == {"make bench-peers"}


def test_help_ends_with_an_example(program):
    """`--help` ends with a line that can be copied."""
    ended = program("--help")
    assert ended.code == 0
    assert "Example: python -m benchmarks.simulation" in " ".join(ended.out.replace("│", " ").split())


def test_ratios_are_taken_turn_by_turn():
    """A machine that becomes slower in the middle does not move the ratio of two that take turns on it."""
    assert ratios([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
