"""The tables in results/benchmarks equal the documents beside them."""

from __future__ import annotations

import pytest

from benchmarks.support.write_tables import RESULTS, TABLES, tables_text


@pytest.mark.parametrize("name", TABLES)
def test_committed_tables_are_those_of_the_document(name):
    """`python -m benchmarks.support.write_tables` would change nothing."""
    assert (RESULTS / f"{name}.md").read_text("utf-8") == tables_text(name)
