"""Pages that are generated from results: they equal the output of `python -m studies.pages`."""

from __future__ import annotations

import pytest

from studies.pages.__main__ import FOLDER, PAGES
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_the_generated_one(name):
    assert (FOLDER / name).read_text("utf-8") == PAGES[name]()
    assert FOLDER == ROOT / "docs"
