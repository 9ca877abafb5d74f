"""Test of the measurement of the training process's memory; started from a terminal, it runs thousands of rounds."""

from __future__ import annotations

import pytest

from tests.faults.training_memory import lines, play, summarised

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.mark.parametrize("models", [False, True])
def test_memory_of_a_training_process_is_read_after_each_round(tmp_path, models):
    samples, seconds = play(tmp_path, 6, 1, models)
    assert [one["round"] for one in samples] == [1, 2, 3, 4, 5, 6]
    assert all(one["resident_kib"] > 50_000 for one in samples)
    assert (tmp_path / "models" / "digits" / "current").exists() is models
    many = [{"round": number, "resident_kib": 1000.0 + number} for number in range(90)]
    printed = list(lines({"plays": {"a": summarised(many, seconds)}}))
    assert "+100 ± " in printed[1] and "+100 ± " in printed[2]
