"""Messages of errors: what is wrong, and the remedy at the end."""

from __future__ import annotations

import pytest

from fedpatch.shared.errors import problem_and_remedy


@pytest.mark.parametrize(
    ("message", "problem", "remedy"),
    [
        ("patch: is damaged; delete it", "patch: is damaged", "delete it"),
        (
            "patch: is damaged; the one before it too; delete both",
            "patch: is damaged; the one before it too",
            "delete both",
        ),
        ("no remedy is known", "no remedy is known", "no remedy is known"),
    ],
)
def test_remedy_follows_the_last_semicolon_and_no_part_is_empty(message: str, problem: str, remedy: str):
    assert problem_and_remedy(message) == (problem, remedy)
