"""What `make coverage` says of a report, and what it lets pass."""

from __future__ import annotations

from typing import Any

from tests.support.covered import pure_files, shortfalls
from tests.support.paths import ROOT


def _file(percent: float, lines: tuple[int, ...] = (), branches: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    return {
        "summary": {"percent_covered": percent},
        "missing_lines": list(lines),
        "missing_branches": list(map(list, branches)),
    }


def test_a_pure_file_is_run_wholly_and_any_other_to_nine_tenths():
    """One line of a pure file is too many; of another, what is below the bound is told with its places."""
    files = {
        "a/pure.py": _file(99.9, (4,), ((4, 5), (7, -3))),
        "a/io.py": _file(90.0, (8,)),
        "a/low.py": _file(89.9, (9,)),
    }
    assert shortfalls(files, {"a/pure.py"}) == [
        "a/low.py: 89.9 %, never run: 9",
        "a/pure.py: 99.9 %, never run: 4 7->-3",
    ]
    assert shortfalls({"a/pure.py": _file(100.0)}, {"a/pure.py"}) == []


def test_a_pure_file_that_nothing_imports_does_not_pass():
    """Silence is no proof."""
    assert shortfalls({}, {"a/pure.py"}) == ["a/pure.py: pure, and not measured"]


def test_the_list_of_pure_modules_names_files():
    """It is the one that the import rules are checked with."""
    assert all((ROOT / path).is_file() for path in pure_files())
    assert "coordinator/rounds/run_engine.py" in pure_files()
