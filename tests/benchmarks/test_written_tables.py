"""Tables in docs/explanation/performance.md are made from the documents beside them, and say what these say."""

from __future__ import annotations

from benchmarks.support.write_tables import PAGE, TABLES, written


def test_the_page_says_what_was_measured():
    """`python -m benchmarks.support.write_tables` would change nothing."""
    page = PAGE.read_text("utf-8")
    assert written(page) == page


def test_every_table_has_its_place():
    """Each of those that are made stands on the page, once."""
    page = PAGE.read_text("utf-8")
    assert [page.count(f"<!-- tables of {name} -->") for name in TABLES] == [1] * len(TABLES)
