"""The picture of a run: what is in it depends on how tall the terminal is, and on what was told of the devices."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedpatch.coordinator.observability.live_view import MAX_DEVICES, SPARKS, draw, sparkline
from fedpatch.coordinator.observability.snapshot import DeviceLine, Others
from fedpatch.coordinator.rounds.participant_transitions import State
from tests.coordinator.observability.test_live_view import collecting, text_of


def test_a_taller_terminal_names_more_devices():
    """As many as it has lines for; first those that are waited for, then those that are out, with their reasons."""
    devices = [DeviceLine(f"pi-{index}", State.TRAINING, "", index / 100) for index in range(10)]
    devices += [DeviceLine(f"hot-{index}", State.DECLINED, "too_hot", 0.0) for index in range(90)]
    console = Console(file=io.StringIO(), width=200, record=True, markup=False)
    console.print(draw(collecting(*devices), lines=50))
    lines = console.export_text().splitlines()
    named = [line.split() for line in lines if line.startswith("  ") and line.split()[1] in ("training", "declined")]
    assert [words[0] for words in named[:10]] == [f"pi-{index}" for index in range(10)]
    assert len(named) == MAX_DEVICES + 50 - 24 and named[-1][1:3] == ["declined", "too_hot"]
    assert len(lines) < 50


def test_devices_that_are_only_counted_are_in_the_picture_too():
    """Whoever watches over the network is not told of each device by name."""
    devices = [DeviceLine(f"pi-{index}", State.TRAINING, "", index / 100) for index in range(10)]
    others = (Others(State.REPORTED, "", 70), Others(State.DECLINED, "too_hot", 20))
    lines = "\n".join(text_of(collecting(*devices, others=others, earlier=(0.1, 0.2))))
    assert "training 10  reported 70  declined 20 (too_hot 20)" in lines
    assert f"and {100 - MAX_DEVICES} more" in lines
    assert f"  {sparkline([0.1, 0.2, 0.4, 0.8])}" in lines


@given(st.lists(st.floats(0.0, 1.0), max_size=50))
def test_a_sparkline_has_one_mark_per_value_in_their_order(values):
    """A greater value never has a lower mark."""
    marks = sparkline(values)
    assert len(marks) == len(values)
    levels = [SPARKS.index(mark) for mark in marks]
    assert all(
        low <= high
        for (a, low) in zip(values, levels, strict=True)
        for (b, high) in zip(values, levels, strict=True)
        if a < b
    )
