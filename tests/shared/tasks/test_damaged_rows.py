"""Damaged rows of a file, and the share of them that it may have."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.reading.damaged_rows import DamagedRows, require_share


def rows_of(damaged: int, rows: int, share: float) -> DamagedRows:
    found = DamagedRows("a.csv", "line", share)
    for line in range(damaged):
        found.add(line + 2, "column v: 'warm' is no number")
    found.rows = rows
    return found


@pytest.mark.parametrize(
    ("damaged", "rows", "share", "is_refused"),
    [
        (0, 0, 0.0, False),
        (0, 5, 0.0, False),
        (1, 5, 0.2, False),
        (2, 5, 0.2, True),
        (1, 5, 0.0, True),
        (5, 5, 1.0, False),
    ],
)
def test_file_is_refused_above_the_share_with_the_first_place(damaged, rows, share, is_refused):
    why = rows_of(damaged, rows, share).refusal()
    assert bool(why) == is_refused
    if is_refused:
        assert why.startswith(f"a.csv, line 2, column v: 'warm' is no number; of {rows} lines {damaged} are damaged")


def test_note_counts_the_damaged_rows_and_names_the_first():
    assert rows_of(0, 5, 0.2).note() == ""
    assert "lines damaged: 2, left out, of 5; the first: a.csv, line 2" in rows_of(2, 5, 0.5).note()


@pytest.mark.parametrize("share", [0, 0.2, 1.0])
def test_share_from_0_to_1_is_accepted(share):
    require_share(share)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "0.2", None])
def test_share_that_is_no_number_from_0_to_1_is_refused(share: Any):
    with pytest.raises(UsageError, match="it must be from 0 to 1"):
        require_share(share)
