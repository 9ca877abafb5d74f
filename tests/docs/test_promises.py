"""The page of guarantees names an existing test for each guarantee."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

ITEMS = re.findall(
    r"^- (.+): `(tests/[^`]+)`$", (ROOT / "docs" / "reference" / "promises.md").read_text("utf-8"), re.MULTILINE
)


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


def test_each_item_of_the_page_is_read():
    """The test above would not check an item in another form."""
    lines = (ROOT / "docs" / "reference" / "promises.md").read_text("utf-8").splitlines()
    assert sum(line.startswith("- ") for line in lines) == len(ITEMS) > 40
