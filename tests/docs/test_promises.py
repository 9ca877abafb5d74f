"""The page of guarantees names an existing test for each guarantee."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

LINES = [
    line
    for line in (ROOT / "docs" / "reference" / "promises.md").read_text("utf-8").splitlines()
    if line.startswith("- ")
]
ITEMS = [(line, test) for line in LINES for test in re.findall(r"`(tests/[^`]+)`", line)]
"""Each guarantee with each test that its line names."""


def has_test(test: str) -> bool:
    """Whether pytest would find a test of this id; for a file or a class, any test in it."""
    file, *names = test.split("::")
    found: list[ast.stmt] = ast.parse((ROOT / file).read_text("utf-8")).body
    for name in names:
        kinds = (one for one in found if isinstance(one, ast.ClassDef | ast.FunctionDef))
        match = next((one for one in kinds if one.name == name), None)
        if match is None:
            return False
        if isinstance(match, ast.FunctionDef):
            return name.startswith("test_")
        found = match.body
    return any("def test_" in ast.unparse(one) for one in found)


@pytest.mark.parametrize(("guarantee", "test"), ITEMS, ids=[test for _, test in ITEMS])
def test_guarantee_has_its_test(guarantee: str, test: str):
    """The page names the test by its pytest id."""
    assert has_test(test), f"no test {test} for: {guarantee}"


def test_each_item_of_the_page_ends_with_its_test():
    """The test above would not check an item in another form."""
    assert [line for line in LINES if not re.fullmatch(r"- .+: `tests/[^`]+`", line)] == []
    assert len(LINES) > 40
